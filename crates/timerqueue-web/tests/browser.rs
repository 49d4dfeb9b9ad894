//! The page in a browser without a screen.
//!
//! Ground rules. One browser, and one scheduler whose clock is virtual until the runs that the page
//! shows have ended, so that plots and lists are the same each time. With `TIMERQUEUE_SCREENSHOTS`
//! set to a folder, pictures of the pages are written there.

#[path = "../../timerqueue-scheduler/tests/postgres/server.rs"]
mod postgres;
mod support;
#[path = "support/webdriver.rs"]
mod webdriver;

use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;
use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Handler, Outcome, Query, Retry, Run, Schedule, Scheduler, State};
use timerqueue_web::Page;

use support::Served;
use webdriver::Browser;

const EVIL: &str = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>";

fn retry() -> Retry {
    Retry::new(4).first(Duration::from_secs(40)).factor(1.5)
}

/// An hour of work: mails on time, reports that fail at times, a job with a hostile name, and
/// schedules.
fn made() -> (ManualClock, Runtime, Scheduler) {
    let clock = ManualClock::new();
    clock.set_wall(UNIX_EPOCH + Duration::from_secs(1_790_000_000));
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let report = |page: u32, run: &Run| match page % 9 {
        0 if run.attempt() < 3 => Err("connection refused (os error 111)".to_owned()),
        4 => Err(format!("page {page}: the printer is on fire\n  at the third tray\n  since this morning")),
        _ => Ok(Outcome::Done),
    };
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .handler("mail", |_: serde_json::Value, _: &Run| {})
        .register(Handler::new("report", report).retry(retry()))
        .async_handler("import", |_: u32, _: Run| std::future::pending::<()>())
        // These runs never end.
        .spawner(std::mem::forget)
        .register(Handler::new(EVIL, |_: serde_json::Value, _: &Run| Err::<(), _>(EVIL)).retry(Retry::never()))
        .start()
        .unwrap();
    let _ = scheduler.put_to(EVIL, EVIL).key(EVIL).due(Duration::from_secs(3_000)).send().wait().unwrap();
    let schedules = [
        ("backup/nightly", "mail", Schedule::cron("30 2 * * *").zone("Europe/Berlin").build()),
        ("report/minutely", "report", Schedule::every(Duration::from_secs(60)).build()),
        ("ledger/hourly", "mail", Schedule::cron("@hourly").zone("UTC").build()),
    ];
    for (at, (key, name, schedule)) in schedules.into_iter().enumerate() {
        let _ = scheduler.put_to(name, &at).key(key).schedule(schedule.unwrap()).send().wait().unwrap();
    }
    for n in 0..900_u64 {
        let due = Duration::from_secs(n * 4 + n % 7);
        let to = json!({"to": format!("user{n}@example.com"), "subject": "Welcome", "tags": [1, 2.50, null]});
        let _ = scheduler.put_to("mail", &to).key(&format!("mail/{n}")).due(due).send().wait().unwrap();
        if n % 5 == 0 {
            let _ = scheduler.put_to("report", &n).key(&format!("report/{n}")).due(due).send().wait().unwrap();
        }
    }
    // After a step of the clock, jobs are late.
    for (at, late) in [0, 1, 0, 40, 3, 0, 900, 0, 1, 7, 0, 6_000, 0].into_iter().cycle().take(900).enumerate() {
        let late = Duration::from_millis(late * (at as u64 % 5));
        clock.set_wall(runtime.wall_now() + late);
        clock.advance(Duration::from_secs(3));
    }
    let _ = scheduler.put_to("import", &7).key("import/ledger").send().wait().unwrap();
    clock.advance(Duration::from_secs(95));
    for n in 0..70 {
        let _ = scheduler
            .put_to("mail", &n)
            .key(&format!("later/{n}"))
            .due(Duration::from_secs(600 + n * 60))
            .send()
            .wait()
            .unwrap();
    }
    (clock, runtime, scheduler)
}

fn scheme(browser: &Browser, name: &str) {
    browser.devtools(
        "Emulation.setEmulatedMedia",
        &json!({"features": [{"name": "prefers-color-scheme", "value": name}]}),
    );
}

fn size(browser: &Browser, width: u32, height: u32, mobile: bool) {
    let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
    browser.devtools("Emulation.setDeviceMetricsOverride", &metrics);
}

#[test]
fn the_page_in_a_browser() {
    let Some(browser) = Browser::start() else { return };
    let (clock, _runtime, scheduler) = made();
    tour(&browser, &scheduler, &|| _ = clock.advance(Duration::ZERO));
    // One browser at a time.
    let Some(server) = postgres::Server::shared() else { return };
    let (node, page) = made_on(server);
    tour(&browser, &page, &|| {});
    drop(node);
}

/// Jobs in each state on a server: of a node, and of a scheduler without handlers for the page.
fn made_on(server: &postgres::Server) -> (Scheduler, Scheduler) {
    let options = PostgresOptions::new().schema(&postgres::new_schema());
    let builder = || Scheduler::builder().store(options.connect(Runtime::global(), &server.address()).unwrap());
    let printer = |_: u64, _: &Run| Err::<(), _>("the printer is on fire");
    let node = builder()
        .handler("mail", |_: serde_json::Value, _: &Run| {})
        .register(Handler::new("report", printer).retry(Retry::never()))
        .register(Handler::new("flaky", printer).retry(Retry::new(9).first(Duration::from_secs(3_600))))
        .async_handler("import", |_: u32, _: Run| std::future::pending::<()>())
        .spawner(std::mem::forget)
        .register(Handler::new(EVIL, |_: serde_json::Value, _: &Run| Err::<(), _>(EVIL)).retry(Retry::never()))
        .start()
        .unwrap();
    let nightly = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
    let _ = node.put_to("mail", &0).key("backup/nightly").schedule(nightly).send().wait().unwrap();
    for (name, key) in [(EVIL, EVIL), ("report", "report/1"), ("flaky", "flaky/1"), ("import", "import/ledger")] {
        let _ = node.put_to(name, &1).key(key).send().wait().unwrap();
    }
    for n in 0..60 {
        let _ = node.put_to("mail", &n).key(&format!("mail/{n}")).send().wait().unwrap();
        let due = Duration::from_secs(600 + n * 60);
        let _ = node.put_to("mail", &n).key(&format!("later/{n}")).due(due).send().wait().unwrap();
    }
    let stats = || node.stats().wait().unwrap().jobs;
    let is_there =
        || stats().of(State::Dead) == 2 && stats().of(State::Running) == 1 && stats().of(State::Waiting) == 61;
    postgres::until("the runs have ended", is_there);
    (node, builder().start().unwrap())
}

fn tour(browser: &Browser, scheduler: &Scheduler, advance: &dyn Fn()) {
    let served = Served::new(&Page::builder(scheduler).build().unwrap());
    let at = |path: &str| format!("http://{}{path}", served.address);
    let dead = scheduler.list(Query::new().state(State::Dead)).wait().unwrap();
    let printer = dead.iter().find(|job| &*job.name == "report").unwrap().id.0;
    let evil = dead.iter().find(|job| &*job.key == EVIL).unwrap().id.0;
    let daily = scheduler.get("backup/nightly").wait().unwrap().unwrap().id.0;

    pages(
        browser,
        &at,
        &[
            ("job-dead", format!("/job/{printer}")),
            ("job-evil", format!("/job/{evil}")),
            ("job-schedule", format!("/job/{daily}")),
            ("edit", format!("/job/{daily}/edit")),
            ("new-like-evil", format!("/new?like={evil}")),
            ("search", "/jobs?state=waiting&find=1&since=2020-01-01&sort=newest".to_owned()),
            ("search-evil", format!("/jobs?state=dead&{}", query("find", EVIL))),
            ("many", "/many?state=dead&action=retry".to_owned()),
            ("many-evil", format!("/many?state=dead&action=discard&{}", query("handler", EVIL))),
            ("many-done", "/many?state=dead&action=retry&last=9&done=1&changed=12&kept=3".to_owned()),
            ("running", "/jobs?state=running".to_owned()),
        ],
    );
    keyboard(browser, &at, "/");
    keyboard(browser, &at, "/jobs?state=waiting&since=2020-01-01");
    keyboard(browser, &at, "/new");
    many(browser, &at, scheduler);
    forms(browser, &at, scheduler);
    actions(browser, &at, scheduler, advance, printer);
    live(browser, &at, scheduler);
    without_scripts(browser, &at, scheduler);
    other_sites(browser, &at, scheduler);
    with_a_token(browser, scheduler);
}

/// Each page in both colour schemes, on a large and on a small screen: no complaint of the browser,
/// nothing wider than the screen, no foreign script.
fn pages(browser: &Browser, at: &impl Fn(&str) -> String, more: &[(&str, String)]) {
    let lists = [
        "/",
        "/?span=day",
        "/?span=week",
        "/jobs?state=waiting",
        "/jobs?state=dead",
        "/jobs?state=all",
        "/schedules",
        "/nodes",
    ];
    let names = ["overview", "overview-day", "overview-week", "waiting", "dead", "all", "schedules", "nodes"];
    let all =
        names.into_iter().zip(lists.map(str::to_owned)).chain(more.iter().map(|(name, path)| (*name, path.clone())));
    for (name, path) in all {
        for (scheme_name, width, mobile) in [("light", 1_200, false), ("dark", 1_200, false), ("dark", 390, true)] {
            scheme(browser, scheme_name);
            size(browser, width, 900, mobile);
            browser.open(&at(&path));
            let title = browser.run("return document.title");
            assert!(
                title.as_str().is_some_and(|title| title.ends_with("timerqueue") && title != "hacked"),
                "{path}: {title}"
            );
            assert_eq!(browser.complaints(), [""; 0], "{path}");
            assert_eq!(browser.run(WIDER), json!([]), "{path} at {width}");
            assert_eq!(browser.run(CUT), json!([]), "{path} at {width}");
            if path == "/jobs?state=dead" {
                assert!(browser.text("#list").contains("the printer is on fire"), "an error, at {width}");
            }
            let foreign = browser.run("return document.querySelectorAll('main img, main script, [onerror]').length");
            assert_eq!(foreign, 0, "{path}");
            let faint = browser.run(CONTRAST);
            assert_eq!(faint, json!([]), "{path} in {scheme_name}");
            browser.picture(&format!("{name}-{scheme_name}-{width}"));
        }
    }
    scheme(browser, "light");
    size(browser, 1_200, 900, false);
}

/// Elements that make the page wider than the screen.
const WIDER: &str = r"
    const screen = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= screen) return [];
    return ['wider', document.documentElement.scrollWidth, ...[...document.querySelectorAll('body *')]
        .filter((e) => e.getBoundingClientRect().right > screen).map((e) => e.tagName + '.' + e.className)];";

/// Labels of a plot of which a part lies outside, and tiles whose words take a second line.
const CUT: &str = r"
    const cut = [...document.querySelectorAll('svg.plot')].flatMap((plot) => [...plot.querySelectorAll('text')].filter((label) => {
        const box = label.getBBox(), all = plot.viewBox.baseVal;
        return box.x < 0 || box.x + box.width > all.width || box.y + box.height > all.height; }));
    const long = [...document.querySelectorAll('.tile span')].filter((words) => words.getClientRects()[0].height > 24);
    return [...cut, ...long].map((e) => e.textContent);";

/// Texts whose contrast with what is behind them is below 4.5 to 1.
const CONTRAST: &str = r"
    const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
        return .2126 * r + .7152 * g + .0722 * b; };
    const parts = (c) => c.match(/[\d.]+/g).map(Number);
    const behind = (e) => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
        return [255, 255, 255]; };
    const faint = [];
    for (const e of document.querySelectorAll('body *')) {
        if (e.closest('svg, [hidden], .skip, script') || !e.checkVisibility({opacityProperty: true}) ||
            ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
        const opacity = Number(getComputedStyle(e).opacity), back = behind(e).slice(0, 3);
        const front = parts(getComputedStyle(e).color).slice(0, 3).map((v, i) => v * opacity + back[i] * (1 - opacity));
        const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
        if ((a + .05) / (b + .05) < 4.5) faint.push(e.className + ': ' + e.textContent.slice(0, 30) + ' ' + ((a + .05) / (b + .05)).toFixed(2));
    }
    return [...new Set(faint)];";

/// All that can be clicked can be reached by the tab key, and shows it.
fn keyboard(browser: &Browser, at: &impl Fn(&str) -> String, path: &str) {
    browser.open(&at(path));
    let wanted = browser.run("return [...document.querySelectorAll('a[href], button, summary, select, textarea, input:not([type=hidden])')].filter((e) => e.checkVisibility()).length");
    // The field of an instant has a stop for each of its parts.
    let stops = browser.run("return 8 * document.querySelectorAll('input[type=datetime-local]').length");
    let mut reached = json!(0);
    for _ in 0..wanted.as_u64().unwrap() + stops.as_u64().unwrap() {
        let key = |kind: &str| json!({"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9});
        browser.devtools("Input.dispatchKeyEvent", &key("rawKeyDown"));
        browser.devtools("Input.dispatchKeyEvent", &key("keyUp"));
        reached = browser.run(
            "const e = document.activeElement, all = window.reached ??= new Set();
            if (e !== document.body && getComputedStyle(e).outlineStyle !== 'none') all.add(e);
            return all.size;",
        );
    }
    let reached = reached.as_u64().unwrap();
    assert!(reached + 1 >= wanted.as_u64().unwrap(), "{reached} of {wanted}");
}

fn actions(browser: &Browser, at: &impl Fn(&str) -> String, scheduler: &Scheduler, advance: &dyn Fn(), dead: u64) {
    browser.open(&at(&format!("/job/{dead}")));
    assert!(browser.text("#runs").contains("the printer is on fire"));
    browser.follow("form[action$='/retry'] button");
    assert!(browser.text(".said").contains("waits again"), "{}", browser.url());
    advance();
    browser.open(&at("/jobs?state=failing"));
    browser.follow("form[action$='/retry'] button");
    assert_eq!(browser.text(".said"), "Due now.");
    // To cancel takes two clicks.
    browser.open(&at("/jobs?state=waiting&key=later%2F7"));
    browser.follow("td.key-of a");
    browser.click("details.sure summary");
    browser.follow("form[action$='/cancel'] button");
    assert!(browser.text(".said").contains("No attempt will start"));
    assert!(scheduler.get("later/7").wait().unwrap().is_none());
    browser.open(&at("/"));
    browser.follow("form[action='/handler/pause?name=mail'] button");
    let paused = |name: &str| scheduler.stats().wait().unwrap().jobs.kind(name).unwrap().paused;
    browser.until("the handler is paused", || paused("mail"));
    browser.follow("form[action='/handler/resume?name=mail'] button");
    browser.until("the handler goes on", || !paused("mail"));
    browser.open(&at("/"));
    // The handler with the hostile name as well.
    let selector = "form[action*='handler/pause?name=%3C'] button";
    browser.follow(selector);
    browser.until("the handler is paused", || paused(EVIL));
    browser.open(&at("/"));
    assert!(browser.text("#handlers").contains("paused"));
    browser.open(&at("/schedules"));
    browser.follow("form[action$='/pause'] button");
    assert_eq!(browser.text(".said"), "Paused.");
    assert!(!browser.url().contains("said="), "a later look says nothing of it: {}", browser.url());
    assert_eq!(browser.complaints(), [""; 0]);
}

fn query(name: &str, value: &str) -> String {
    form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish()
}

/// A change of many jobs goes on by itself, and by hand where there are no scripts.
fn many(browser: &Browser, at: &impl Fn(&str) -> String, scheduler: &Scheduler) {
    let script = |on: bool| browser.devtools("Emulation.setScriptExecutionDisabled", &json!({"value": !on}));
    for scripts in [true, false] {
        let put = |n: u64| {
            let due = Duration::from_secs(90_000 + n);
            scheduler.put_to("mail", &n).key(&format!("bulk/{n}")).due(due)
        };
        let _ = scheduler.put_many((0..1_100).map(put)).wait().unwrap();
        script(scripts);
        browser.open(&at("/jobs?state=waiting"));
        browser.keys("input[name=find]", "BULK/");
        browser.follow(".filter button");
        browser.follow(".many a[href*='action=cancel']");
        let asked = browser.text("main"); // counted among the first 1,000 of the state
        assert!(asked.contains("more than 9") && asked.contains(" jobs of this list"), "{asked}");
        browser.follow("form[action='/step'] button");
        for _ in 0..if scripts { 0 } else { 2 } {
            assert!(browser.text("main").contains("were cancelled"));
            browser.follow("form[action='/step'] button");
        }
        browser.until("all were cancelled", || browser.text("main").contains("1\u{2009}100 were cancelled"));
        assert!(browser.text("main").contains("To the list"), "{}", browser.url());
        assert_eq!(scheduler.list(Query::new().key_prefix("bulk/")).wait().unwrap().len(), 0);
        assert_eq!(browser.complaints(), [""; 0]);
    }
    script(true);
}

/// A job is put by its form, and then edited.
fn forms(browser: &Browser, at: &impl Fn(&str) -> String, scheduler: &Scheduler) {
    browser.open(&at("/jobs"));
    browser.follow("a[href='/new']");
    for (field, keys) in [("input[name=handler]", "mail"), ("input[name=key]", "by/hand"), ("textarea", "{\"to\": ")] {
        browser.keys(field, keys);
    }
    browser.run("document.querySelector('input[name=due]').value = '2100-01-01T00:00:00'");
    browser.follow("form[action='/put'] button");
    assert!(browser.text(".said").contains("The payload is no JSON"), "{}", browser.text("main"));
    let _ = browser.complaints(); // of the status
    browser.keys("textarea", "\"ann\"}");
    browser.follow("form[action='/put'] button");
    browser.until("the job was put", || browser.text(".said") == "The job was put.");
    let job = scheduler.get("by/hand").wait().unwrap().unwrap();
    assert_eq!(&*job.payload, r#"{"to":"ann"}"#);
    browser.follow("a[href$='/edit']");
    browser.run("document.querySelector('textarea').value = '[1,\\n 2]'");
    browser.run("document.querySelector('input[name=priority]').value = 3");
    browser.click("form[action$='/save'] summary");
    browser.keys("input[name=attempts]", "4");
    browser.click("input[name=at-most-once]");
    browser.follow("form[action$='/save'] button");
    assert_eq!(browser.text(".said"), "The job was changed.");
    let edited = scheduler.get("by/hand").wait().unwrap().unwrap();
    assert_eq!((edited.id, &*edited.payload, edited.priority, edited.due), (job.id, "[1,2]", 3, job.due));
    assert_eq!((edited.terms.attempts, edited.terms.at_most_once), (Some(4), true));
    let _ = scheduler.cancel("by/hand").wait().unwrap();
    assert_eq!(browser.complaints(), [""; 0]);
}

/// The page follows by itself.
fn live(browser: &Browser, at: &impl Fn(&str) -> String, scheduler: &Scheduler) {
    browser.open(&at("/jobs?state=waiting&key=new"));
    assert!(browser.text("#list").contains("No job."));
    let _ = scheduler.put_to("mail", &1).key("new/1").due(Duration::from_secs(60)).send().wait().unwrap();
    browser.until("the list follows", || browser.text("#list").contains("new/1"));
    assert_eq!(browser.complaints(), [""; 0]);
}

fn without_scripts(browser: &Browser, at: &impl Fn(&str) -> String, scheduler: &Scheduler) {
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({"value": true}));
    let _ = scheduler.put_to("mail", &1).key("bare").due(Duration::from_secs(60)).send().wait().unwrap();
    browser.open(&at("/jobs?state=waiting"));
    browser.keys("input[name=key]", "bare");
    browser.follow(".filter button");
    browser.follow("td.key-of a");
    browser.click("details.sure summary");
    browser.follow("form[action$='/cancel'] button");
    assert!(browser.text(".said").contains("No attempt will start"));
    assert!(scheduler.get("bare").wait().unwrap().is_none());
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({"value": false}));
}

/// A page of another site changes nothing, even if it had the secret of the forms.
fn other_sites(browser: &Browser, at: &impl Fn(&str) -> String, scheduler: &Scheduler) {
    let _ = scheduler.put_to("mail", &1).key("mine").due(Duration::from_secs(60)).send().wait().unwrap();
    let id = scheduler.get("mine").wait().unwrap().unwrap().id.0;
    browser.open(&at("/"));
    let secret = browser.run("return document.querySelector('input[name=form]').value");
    let (target, secret) = (at(&format!("/job/{id}/cancel")), secret.as_str().unwrap());
    let form = format!("<form method=post action={target}><input name=form value={secret}><button>go</button></form>");
    browser.open(&format!("data:text/html,{form}"));
    browser.follow("button");
    browser.until("the form was sent", || browser.url() == target);
    browser.until("the refusal", || browser.text("body").contains("a page of another site"));
    assert!(scheduler.get("mine").wait().unwrap().is_some());
    let _ = browser.complaints();
}

fn with_a_token(browser: &Browser, scheduler: &Scheduler) {
    let token = "correct horse battery staple";
    let served = Served::new(&Page::builder(scheduler).token(token).build().unwrap());
    let at = |path: &str| format!("http://{}{path}", served.address);
    browser.open(&at("/jobs"));
    browser.picture("login");
    browser.keys("input[name=token]", "not the token");
    browser.follow("button");
    assert!(browser.text(".said").contains("not the token"));
    browser.keys("input[name=token]", token);
    browser.follow("button");
    browser.until("the overview", || browser.url() == at("/"));
    browser.open(&at("/jobs"));
    assert_eq!(browser.text("h1"), "Waiting");
    assert_eq!(browser.run("return document.cookie"), "", "no script reads the cookie");
    browser.follow("form[action$='/run'] button");
    assert_eq!(browser.text(".said"), "Due now.");
    // By the URL, from a browser without a session.
    let again = Served::new(&Page::builder(scheduler).token(token).build().unwrap());
    let at = |path: &str| format!("http://{}{path}", again.address);
    browser.open(&at("/schedules?token=correct+horse+battery+staple"));
    browser.until("the token leaves the URL", || browser.url() == at("/schedules"));
    assert_eq!(browser.text("h1"), "Schedules");
    // The servers end here: no page is left that asks them. The browser has complained of the
    // refusals.
    browser.open("about:blank");
    let _ = browser.complaints();
}
