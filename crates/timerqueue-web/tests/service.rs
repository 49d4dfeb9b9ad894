//! The page as a service, without sockets, on virtual time.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::store::SqliteOptions;
use timerqueue_scheduler::{Handler, History, JobInfo, Outcome, Query, Retry, Run, Schedule, Scheduler, State, Until};
use timerqueue_web::{Body, BuildError, Page, PageBuilder, Peer};

/// On a store in memory, each answer is there at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the page waits for something"),
    }
}

struct Rig {
    clock: ManualClock,
    scheduler: Scheduler,
    _runtime: Runtime,
}

const TOKEN: &str = "0123456789abcdef-token";
const EVIL: &str = "\"><img src=x onerror=alert(1)><script>alert(2)</script>'&lt;/td></style>";

impl Rig {
    fn new() -> Self {
        let clock = ManualClock::new();
        clock.set_wall(std::time::UNIX_EPOCH + Duration::from_secs(1_767_225_600));
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let fails = |name: &str, retry: Retry| {
            Handler::new(name, |_: serde_json::Value, _: &Run| Err::<(), _>("the server says no")).retry(retry)
        };
        let scheduler = Scheduler::builder()
            .runtime(&runtime)
            .handler("mail", |_: serde_json::Value, _: &Run| {})
            .handler("asks", |_: serde_json::Value, _: &Run| Outcome::again(Duration::from_secs(60)))
            .register(fails("dies", Retry::never()))
            .register(fails("fails", Retry::new(9)))
            .register(Handler::new(EVIL, |_: serde_json::Value, _: &Run| Err::<(), _>(EVIL)).retry(Retry::never()))
            .start()
            .unwrap();
        // The store knows the handler, and the overview has a form.
        let _ = scheduler.resume_handler("mail").wait().unwrap();
        Self { clock, scheduler, _runtime: runtime }
    }

    fn put(&self, name: &str, key: &str, after: u64) -> JobInfo {
        let due = Duration::from_secs(after);
        let _ = self.scheduler.put_to(name, &["payload"]).key(key).due(due).send().wait().unwrap();
        self.job(key).unwrap()
    }

    fn job(&self, key: &str) -> Option<JobInfo> {
        self.scheduler.get(key).wait().unwrap()
    }

    fn run(&self) {
        self.clock.advance(Duration::ZERO);
    }

    fn builder(&self) -> PageBuilder {
        Page::builder(&self.scheduler)
    }

    fn page(&self) -> Page {
        self.builder().build().unwrap()
    }
}

fn peer(address: &str) -> Peer {
    Peer(address.parse().unwrap())
}

fn get(path: &str) -> http::request::Builder {
    Request::get(path).header(header::HOST, "localhost:8787").extension(peer("127.0.0.1:40000"))
}

fn post(path: &str) -> http::request::Builder {
    Request::post(path)
        .header(header::HOST, "localhost:8787")
        .header(header::ORIGIN, "http://localhost:8787")
        .extension(peer("127.0.0.1:40000"))
}

/// A body with one piece.
struct Form(Option<bytes::Bytes>);

impl Form {
    fn new(text: &str) -> Self {
        Self(Some(text.to_owned().into()))
    }
}

impl http_body::Body for Form {
    type Data = bytes::Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, std::io::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

fn ask(page: &Page, request: http::request::Builder) -> Response<Body> {
    now(page.respond(request.body(Body::default()).unwrap()))
}

fn send(page: &Page, request: http::request::Builder, form: &str) -> Response<Body> {
    now(page.respond(request.body(Form::new(form)).unwrap()))
}

fn text(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().into_bytes().to_vec()).unwrap()
}

fn show(page: &Page, path: &str) -> String {
    let response = ask(page, get(path));
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    text(response)
}

/// The secret of the forms of a page.
fn form(page: &Page) -> String {
    let html = show(page, "/");
    let (_, rest) = html.split_once("name=\"form\" value=\"").expect("a form");
    format!("form={}", rest.split('"').next().unwrap())
}

fn location(response: &Response<Body>) -> &str {
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    response.headers()[header::LOCATION].to_str().unwrap()
}

fn value(thing: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(thing).unwrap()
}

fn json(page: &Page, path: &str) -> serde_json::Value {
    let response = ask(page, get(&format!("/api/v1{path}")));
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    serde_json::from_str(&text(response)).unwrap()
}

/// The JSON is that of the types of the scheduler, whose form has a test of its own.
#[test]
fn each_page_has_its_data_as_json() {
    let rig = Rig::new();
    let waiting = rig.put("mail", "later", 3_600);
    rig.put("dies", EVIL, 0);
    let nightly = timerqueue_scheduler::Schedule::cron("30 2 * * *").build().unwrap();
    let _ = rig.scheduler.put_to("mail", &()).key("nightly").schedule(nightly).send().wait().unwrap();
    rig.run();
    let (page, now) = (rig.page(), rig._runtime.wall_now());
    let overview = json(&page, "?span=day");
    assert_eq!(overview["counts"], value(&rig.scheduler.stats().wait().unwrap().jobs));
    assert_eq!(overview["activity"][0]["handler"], "dies");
    let jobs = json(&page, "/jobs?state=waiting");
    assert_eq!(jobs, serde_json::json!({"jobs": [value(&waiting)], "next": null}));
    let dead = json(&page, "/jobs?state=dead");
    assert_eq!(dead["jobs"][0], value(&rig.job(EVIL).unwrap()));
    let schedules = json(&page, "/schedules");
    let nightly = rig.job("nightly").unwrap();
    assert_eq!(schedules["jobs"][0], serde_json::to_value(nightly.shown(now)).unwrap());
    assert_eq!(schedules["jobs"][0]["next"].as_array().unwrap().len(), 5);
    assert_eq!(json(&page, "/nodes")["nodes"], value(&rig.scheduler.nodes().wait().unwrap()));
    assert_eq!(json(&page, &format!("/job/{}", waiting.id.0)), value(&waiting));

    // A list in parts.
    for n in 0..60 {
        rig.put("mail", &format!("n/{n:02}"), 10 + n);
    }
    let first = json(&page, "/jobs?key=n/");
    let after = first["next"].as_str().unwrap();
    let second = json(&page, &format!("/jobs?key=n/&after={after}"));
    assert_eq!((first["jobs"].as_array().unwrap().len(), second["jobs"].as_array().unwrap().len()), (50, 10));
    assert_eq!((&second["jobs"][0]["key"], &second["next"]), (&"n/50".into(), &serde_json::Value::Null));

    // A list of other jobs than those that were meant would be worse.
    let unread = [
        "/jobs?state=deed",
        "/jobs?sort=up",
        "/jobs?since=soon",
        "/jobs?after=x",
        "/schedules?after=x",
        "/done?after=x",
        "?span=year",
    ];
    for missing in ["/job/99999", "/nonsense", "/job/1/cancel", "/icon.svg"].into_iter().chain(unread) {
        let response = ask(&page, get(&format!("/api/v1{missing}")));
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{missing}");
        assert!(text(response).starts_with("{\"error\":"));
    }
    assert_eq!(send(&page, post("/api/v1/jobs"), "").status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
fn figures_are_there_for_prometheus() {
    let rig = Rig::new();
    rig.put("mail", "later", 3_600);
    let page = rig.builder().token("0123456789abcdef").build().unwrap();
    assert_eq!(ask(&page, get("/metrics")).status(), StatusCode::UNAUTHORIZED);
    let request = || get("/metrics").header(header::AUTHORIZATION, "Bearer 0123456789abcdef");
    let figures = text(ask(&page, request()));
    assert!(figures.contains("timerqueue_jobs{handler=\"mail\",state=\"waiting\"} 1\n"), "{figures}");
    rig.put("mail", "now", 0);
    rig.run();
    let response = ask(&page, request());
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain; version=0.0.4; charset=utf-8");
    let figures = text(response);
    assert!(figures.contains("timerqueue_runs_total{handler=\"mail\",end=\"done\"} 1\n"), "{figures}");
}

#[test]
fn data_have_the_rights_of_the_page() {
    let rig = Rig::new();
    let page = rig.builder().nested_at("/admin").token("0123456789abcdef").build().unwrap();
    let refused = ask(&page, get("/api/v1/nodes"));
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(refused.headers()[header::WWW_AUTHENTICATE], "Bearer");
    assert!(!text(refused).contains("<form"));
    let bearer = get("/api/v1/nodes").header(header::AUTHORIZATION, "Bearer 0123456789abcdef");
    assert_eq!(ask(&page, bearer).status(), StatusCode::OK);
    let by_url = ask(&page, get("/api/v1/nodes?token=0123456789abcdef"));
    assert!(by_url.headers().get(header::SET_COOKIE).is_none());
    assert!(text(by_url).starts_with("{\"nodes\":"));
    let elsewhere = Request::get("/api/v1").header(header::HOST, "localhost").extension(peer("10.0.0.1:1"));
    assert_eq!(ask(&rig.page(), elsewhere).status(), StatusCode::FORBIDDEN);
}

#[test]
fn the_overview_has_counts_plots_and_handlers() {
    let rig = Rig::new();
    for n in 0..3 {
        rig.put("mail", &format!("m/{n}"), 0);
    }
    rig.put("fails", "f", 0);
    rig.put("dies", "d", 0);
    rig.put("mail", "later", 3_600);
    rig.run();
    let page = rig.page();
    for span in ["", "?span=hour", "?span=day", "?span=week"] {
        let html = show(&page, &format!("/{span}"));
        assert!(html.contains("3 done, 0 again, 1 failed, 1 dead"), "{span}");
        assert_eq!(html.matches("<svg class=\"plot\"").count(), 2);
        assert!(html.contains("99 of 100 below"));
    }
    let html = show(&page, "/");
    assert!(html.contains("href=\"/jobs?state=dead\""));
    assert!(html.contains("the server says no"), "what is dead and fails, with its error");
    assert!(html.contains("action=\"/handler/pause?name=mail\""));
}

#[test]
fn jobs_are_listed_by_state_with_parts() {
    let rig = Rig::new();
    // Many are due at the same instant, and the last one is due first.
    for n in 0..120_u64 {
        rig.put("mail", &format!("user/{n:03}"), 60 + (119 - n) / 40);
    }
    let page = rig.page();
    let parts = |mut path: String, list: &str| {
        let mut keys: Vec<String> = Vec::new();
        loop {
            let html = show(&page, &path);
            let before = keys.len();
            keys.extend(html.split("<bdi>user/").skip(1).map(|rest| rest[..3].to_owned()));
            let Some((link, _)) = html.split_once("\">Next part") else { return keys };
            path = link.rsplit("href=\"").next().unwrap().replace("&amp;", "&");
            assert!(keys.len() == before + 50 && path.starts_with(list));
        }
    };
    let by_due = (80..120).chain(40..80).chain(0..40).map(|n| format!("{n:03}"));
    assert_eq!(parts("/jobs?state=waiting".to_owned(), "/jobs?state=waiting"), by_due.collect::<Vec<_>>());
    let newest = (0..120).rev().map(|n| format!("{n:03}"));
    assert_eq!(parts("/jobs?state=all".to_owned(), "/jobs?state=all"), newest.collect::<Vec<_>>());
    assert_eq!(show(&page, "/jobs?state=waiting&key=user/11").matches("<bdi>user/11").count(), 10);
    assert!(show(&page, "/jobs?state=waiting&handler=none").contains("No job."));
    for state in ["running", "failing", "dead", "queued", "all"] {
        let _ = show(&page, &format!("/jobs?state={state}"));
    }
    // The dead, the latest first.
    for n in 0..3 {
        rig.put("dies", &format!("dead/{n}"), 0);
        rig.run();
    }
    let html = show(&page, "/jobs?state=dead");
    let at = |n: u32| html.find(&format!("<bdi>dead/{n}")).unwrap();
    assert!(at(2) < at(1) && at(1) < at(0));
}

#[test]
fn a_job_has_its_payload_attempts_and_errors() {
    let rig = Rig::new();
    let job = rig.put("fails", "f", 0);
    while rig.job("f").unwrap().failures.len() < 2 {
        rig.clock.advance(Duration::from_millis(100));
    }
    let page = rig.page();
    let html = show(&page, &format!("/job/{}", job.id.0));
    assert!(html.contains("<span class=\"state failing\">failing</span>"));
    assert_eq!(html.matches("the server says no").count(), 2, "two attempts");
    assert!(html.contains("attempt 2") && html.contains("attempt 1"));
    assert!(html.contains("&quot;payload&quot;"));
    assert!(html.contains("Jan 01") || html.contains("2026-01-01 00:00:0"));
    assert_eq!(ask(&page, get("/job/999")).status(), StatusCode::NOT_FOUND);
    assert_eq!(ask(&page, get("/job/0")).status(), StatusCode::NOT_FOUND);
    assert_eq!(ask(&page, get("/job/-1")).status(), StatusCode::NOT_FOUND);
    assert_eq!(ask(&page, get("/job/18446744073709551615")).status(), StatusCode::NOT_FOUND);
}

/// It has had a run, and no error.
#[test]
fn a_job_that_asked_for_another_run_is_no_failing_one() {
    let rig = Rig::new();
    let job = rig.put("asks", "again", 0);
    rig.run();
    let page = rig.page();
    let html = show(&page, &format!("/job/{}", job.id.0));
    assert!(html.contains("<span class=\"state waiting\">waiting</span>") && !html.contains("state failing"), "{html}");
    assert_eq!(rig.job("again").unwrap().last.unwrap().end, timerqueue_scheduler::RunEnd::Again);
    assert!(show(&page, "/jobs?state=waiting").contains("<bdi>again</bdi>"));
    assert!(!show(&page, "/jobs?state=failing").contains("<bdi>again</bdi>"));
}

#[test]
fn a_job_shows_what_it_waits_for() {
    let rig = Rig::new();
    let (a, _) = (rig.put("dies", "a & b", 0), rig.put("mail", "later", 60));
    let put = |key: &str, until| rig.scheduler.put_to("mail", &()).key(key).after(["a & b", "later"], until);
    let puts = [put("end", Until::AllEnded), put("strict", Until::AllDoneOrDead)];
    assert!(rig.scheduler.put_many(puts).wait().unwrap().into_iter().all(|placed| placed.is_ok()));
    rig.run();
    let page = rig.page();
    let shown = |key: &str| show(&page, &format!("/job/{}", rig.job(key).unwrap().id.0));
    let html = shown("end");
    assert!(html.contains("all of these have ended") && html.contains("queued"), "{html}");
    assert!(html.contains(&format!("/job/{}\"><bdi>a &amp; b</bdi></a>, dead", a.id.0)), "{html}");
    assert!(html.contains("<bdi>later</bdi></a>, has not ended"), "{html}");
    assert!(shown("strict").contains("blocked"));
    let data = json(&page, &format!("/job/{}", rig.job("end").unwrap().id.0));
    assert_eq!(data["predecessors"][0]["id"], a.id.0);
}

#[test]
fn a_done_job_that_is_kept_is_shown() {
    let folder = std::env::temp_dir().join(format!("timerqueue-web-done-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let options = SqliteOptions::new().keep_finished(Duration::from_secs(3_600));
    let store = options.open(Runtime::global(), folder.join("jobs.db")).unwrap();
    let scheduler = Scheduler::builder().store(store).handler("mail", |_: String, _: &Run| {}).start().unwrap();
    let placed = scheduler.put_to("mail", "<b>ann</b>").key("welcome").send().wait().unwrap();
    let id = placed.added().unwrap();
    while scheduler.get_finished(id).wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let page = Page::builder(&scheduler).build().unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ask = |path: &str| tokio.block_on(page.respond(get(path).body(Body::default()).unwrap()));
    let shown = ask(&format!("/job/{}", id.0));
    assert_eq!(shown.status(), StatusCode::OK);
    let html = text(shown);
    assert!(
        html.contains("welcome")
            && html.contains("&lt;b&gt;ann")
            && html.contains("is-done")
            && html.contains("attempt 1")
    );
    assert_eq!(ask("/job/999").status(), StatusCode::NOT_FOUND);
    drop((page, scheduler));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn done_jobs_are_listed_with_their_nodes_in_parts() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let builder =
        Scheduler::builder().runtime(&runtime).node_name("<n1>").history(History::new(Duration::from_secs(86_400)));
    let scheduler =
        builder.handler("mail", |_: u32, _: &Run| {}).handler("other", |_: u32, _: &Run| {}).start().unwrap();
    let page = Page::builder(&scheduler).build().unwrap();
    let ask = |path: &str| {
        let answer = now(page.respond(get(path).body(Body::default()).unwrap()));
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        text(answer)
    };
    assert!(ask("/done").contains("No done job is kept"));
    for n in 0..60 {
        let _ = scheduler.put_to("mail", &n).key(&format!("user/{n}")).send().wait().unwrap();
        clock.advance(Duration::ZERO);
    }
    let _ = scheduler.put_to("other", &1).key("<b>").send().wait().unwrap();
    clock.advance(Duration::ZERO);
    let html = ask("/done");
    assert!(html.contains("&lt;b&gt;") && html.contains("&lt;n1&gt;") && html.contains("user/59"));
    assert!(html.contains("after=") && !html.contains("user/1<"));
    let data = |path: &str| serde_json::from_str::<serde_json::Value>(&ask(path)).unwrap();
    let first = data("/api/v1/done?handler=mail&key=user/");
    let rest = data(&format!("/api/v1/done?handler=mail&key=user/&after={}", first["next"].as_str().unwrap()));
    let key = |page: &serde_json::Value, at: usize| page["jobs"][at]["key"].as_str().map(str::to_owned);
    assert_eq!((key(&first, 0).as_deref(), key(&first, 49).as_deref()), (Some("user/59"), Some("user/10")));
    assert_eq!((key(&rest, 0).as_deref(), rest["next"].is_null()), (Some("user/9"), true));
    assert_eq!(first["jobs"][0]["node"], "<n1>");
}

#[test]
fn schedules_have_their_last_and_next_runs() {
    let rig = Rig::new();
    let daily = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
    let _ = rig.scheduler.put_to("mail", &()).key("daily").schedule(daily).send().wait().unwrap();
    let _ = rig
        .scheduler
        .put_to("mail", &())
        .key("rule")
        .schedule(Schedule::rule("own", |t| Some(t + Duration::from_secs(60))).build().unwrap())
        .send()
        .wait()
        .unwrap();
    let page = rig.page();
    assert!(show(&page, "/schedules").contains("in 1 h 30 min"));
    rig.clock.advance(Duration::from_secs(2 * 3_600));
    let html = show(&page, "/schedules");
    assert!(html.contains("30 2 * * * in Europe/Berlin") && html.contains("by the rule &quot;own&quot;"));
    assert!(html.contains("<span class=\"state is-done\">done</span>") && html.contains("30 min ago"));
    let id = rig.job("daily").unwrap().id.0;
    let html = show(&page, &format!("/job/{id}"));
    for next in ["2026-01-02 01:30:00", "2026-01-03 01:30:00", "2026-01-06 01:30:00"] {
        assert!(html.contains(next), "{next}");
    }
}

#[test]
fn nodes_have_their_handlers_and_runs() {
    let rig = Rig::new();
    let html = show(&rig.page(), "/nodes");
    let (_, list) = html.split_once("id=\"list\"").unwrap();
    assert!(list.contains("this page") && list.contains("<bdi>mail</bdi>"), "{list}");
    assert!(!list.contains("<img src=x"), "a handler with a hostile name");
    assert!(html.contains("href=\"/nodes\" aria-current=\"page\""));
}

/// What a page has beside texts: names of elements and attributes.
#[test]
fn names_payloads_and_errors_are_harmless_wherever_they_stand() {
    let rig = Rig::new();
    let key = format!("{EVIL}\u{202e}\n\u{7}");
    let mut ids = vec![rig.put(EVIL, &key, 0).id.0];
    let _ = rig.scheduler.put_to(EVIL, EVIL).key(EVIL).send().wait().unwrap();
    rig.run();
    ids.push(rig.put(EVIL, "javascript:alert(1)", 60).id.0);
    let _ = rig.scheduler.pause_handler("javascript:alert(3)").wait().unwrap();
    let recurring = Schedule::every(Duration::from_secs(60)).key(EVIL).build().unwrap();
    let _ = rig.scheduler.put_to(EVIL, EVIL).key(&format!("r{EVIL}")).schedule(recurring).send().wait().unwrap();
    ids.extend(rig.scheduler.list(Query::new()).wait().unwrap().iter().map(|job| job.id.0));
    let page = rig.builder().title(EVIL).build().unwrap();
    let mut paths: Vec<String> = ids.iter().map(|id| format!("/job/{id}")).collect();
    let hostile = "%22%3E%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E";
    paths.extend(["/", "/jobs?state=all", "/jobs?state=dead", "/schedules", "/nodes"].map(str::to_owned));
    paths.extend([format!("/jobs?state=all&handler={hostile}&key={hostile}"), format!("/?said={hostile}")]);
    for path in paths {
        let html = show(&page, &path);
        let (html, script) = html.split_once("<script nonce=").expect("the script of the page");
        assert!(!html.contains("<script") && !script.contains("<script"), "{path}");
        assert_eq!(html.matches("<img").count(), 1, "{path}: the icon alone");
        assert_eq!((html.matches("<style").count(), html.matches("</style").count()), (1, 1), "{path}");
        for attribute in ["href", "action", "src", "content"] {
            assert!(!html.contains(&format!("{attribute}=\"javascript:")), "{path}");
        }
        for tag in html.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
            // Outside of the values of attributes, no tag has a handler of events.
            let outside: String = tag.split('"').step_by(2).collect();
            assert!(!outside.contains(" on") && !outside.contains('\''), "{path}: <{tag}>");
        }
        assert!(!html.contains('\u{202e}') && !html.contains('\u{7}'), "{path}");
    }
    assert!(show(&page, &format!("/job/{}", ids[0])).contains("⟨U+202E⟩⟨U+000A⟩⟨U+0007⟩"));
    // Its form works all the same.
    let html = show(&page, "/");
    let name: String = form_urlencoded::Serializer::new(String::new()).append_pair("name", EVIL).finish();
    assert!(html.contains(&format!("action=\"/handler/pause?{name}\"")));
    let paused = send(&page, post(&format!("/handler/pause?{name}")), &form(&page));
    assert_eq!(location(&paused), "/?said=handler-paused");
    assert!(rig.scheduler.stats().wait().unwrap().jobs.kind(EVIL).unwrap().paused);
}

#[test]
fn each_action_does_what_it_says() {
    let rig = Rig::new();
    let page = rig.page();
    let form = form(&page);
    let act = |id: u64, action: &str| {
        let response = send(&page, post(&format!("/job/{id}/{action}")), &format!("{form}&from=job"));
        location(&response).to_owned()
    };
    let job = rig.put("mail", "a", 3_600).id.0;
    assert_eq!(act(job, "pause"), format!("/job/{job}?said=paused"));
    assert!(rig.job("a").unwrap().paused);
    assert_eq!(act(job, "resume"), format!("/job/{job}?said=resumed"));
    assert_eq!(act(job, "discard"), format!("/job/{job}?said=not-now"), "it is not dead");
    assert_eq!(act(job, "run"), format!("/job/{job}?said=will-run"));
    rig.run();
    assert_eq!(rig.job("a"), None);
    assert_eq!(act(job, "cancel"), "/?said=gone");
    let job = rig.put("mail", "b", 3_600).id.0;
    assert_eq!(act(job, "cancel"), "/jobs?said=cancelled");
    assert_eq!(rig.job("b"), None);
    let job = rig.put("dies", "c", 0).id.0;
    rig.run();
    assert_eq!(act(job, "cancel"), format!("/job/{job}?said=not-now"));
    assert_eq!(act(job, "retry"), format!("/job/{job}?said=revived"));
    rig.run();
    assert_eq!(rig.job("c").unwrap().failures.len(), 2);
    assert_eq!(act(job, "discard"), "/jobs?said=discarded");
    let job = rig.put("fails", "d", 0).id.0;
    rig.run();
    assert_eq!(act(job, "retry"), format!("/job/{job}?said=will-run"));
    rig.run();
    assert_eq!(rig.job("d").unwrap().attempt, 2);
    assert!(show(&page, "/?said=cancelled").contains("No attempt will start."));
    let handler = |word| send(&page, post(&format!("/handler/{word}?name=mail")), &form);
    assert_eq!(location(&handler("pause")), "/?said=handler-paused");
    assert!(show(&page, "/").contains("/handler/resume?name=mail"));
    assert_eq!(location(&handler("resume")), "/?said=handler-resumed");
}

/// The keys of a list, in its order.
fn keys(page: &Page, query: &str) -> Vec<String> {
    let list = json(page, &format!("/jobs?{query}"));
    list["jobs"].as_array().unwrap().iter().map(|job| job["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn lists_are_searched_and_sorted() {
    let rig = Rig::new();
    let page = rig.page();
    let put = |key: &str, payload: &serde_json::Value, after: u64| {
        let due = Duration::from_secs(after);
        let _ = rig.scheduler.put_to("mail", payload).key(key).due(due).send().wait().unwrap();
    };
    put("one", &serde_json::json!({"to": "Ünna@example.com"}), 300);
    rig.clock.advance(Duration::from_secs(100));
    put("two/example", &serde_json::json!(null), 100);
    rig.put("fails", "three", 0);
    rig.run();
    assert_eq!(keys(&page, "find=EXAMPLE"), ["two/example", "one"], "payloads and keys, due first");
    assert_eq!(keys(&page, "find=%C3%BCnna"), ["one"]);
    assert_eq!(keys(&page, "find=server+says"), ["three"], "an error");
    assert_eq!(keys(&page, "state=failing&find=FAIL"), ["three"], "a handler");
    assert_eq!(keys(&page, "find=example&handler=fails"), [""; 0]);
    assert_eq!(keys(&page, "sort=oldest"), ["one", "two/example", "three"]);
    assert_eq!(keys(&page, "sort=newest"), ["three", "two/example", "one"]);
    assert_eq!(keys(&page, "state=all&sort=due"), ["three", "two/example", "one"]);
    // By the time of the put: 00:00:00 and 00:01:40.
    assert_eq!(keys(&page, "until=2026-01-01T00:01:40&sort=oldest"), ["one"]);
    assert_eq!(keys(&page, "since=2026-01-01T00:01:40&sort=oldest"), ["two/example", "three"]);
    assert_eq!(keys(&page, "since=2026-01-01&until=2026-01-01T00:01&find=example"), ["one"]);
    for wrong in
        ["/jobs?since=yesterday", "/jobs?until=2026-13-01", "/api/v1/jobs?since=x", "/many?action=cancel&since=x"]
    {
        assert_eq!(ask(&page, get(wrong)).status(), StatusCode::NOT_FOUND, "{wrong}: a wider list is none");
    }
    let html = show(&page, "/jobs?find=example&since=2026-01-01");
    assert!(html.contains("value=\"example\"") && html.contains("value=\"2026-01-01T00:00:00\""));
    assert!(html.contains("aria-sort=\"ascending\"") && html.contains("sort=oldest"));
    assert!(show(&page, "/jobs?sort=newest").contains("aria-sort=\"descending\""));
}

#[test]
fn a_search_is_bounded_and_goes_on() {
    let rig = Rig::new();
    let page = rig.page();
    for part in 0..11 {
        let put = |n: usize| {
            let due = Duration::from_secs(1 + (part * 500 + n) as u64);
            rig.scheduler.put_to("mail", &n).key(&format!("n/{part:02}/{n:03}")).due(due)
        };
        let _ = rig.scheduler.put_many((0..500).map(put)).wait().unwrap();
    }
    let html = show(&page, "/jobs?find=n/02/49");
    assert!(
        html.contains("No job.") && html.contains("Look further") && html.contains("1\u{2009}000 jobs were looked at")
    );
    let first = json(&page, "/jobs?find=n/02/49");
    let rest = keys(&page, &format!("find=n/02/49&after={}", first["next"].as_str().unwrap()));
    assert_eq!((rest.len(), &*rest[0]), (10, "n/02/490"));
    // What has been found is shown in parts, of which none is lost.
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let part = json(&page, &format!("/jobs?find=/12{after}"));
        seen.extend(part["jobs"].as_array().unwrap().iter().map(|job| job["key"].as_str().unwrap().to_owned()));
        match part["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 110);
    assert!(seen.is_sorted());
    let html = show(&page, "/many?state=waiting&find=n/0&action=pause");
    assert!(html.contains("more than 1\u{2009}000 jobs"), "{html}");
}

/// Does all steps of a change of many jobs. The last page, and the number of the steps.
fn steps(page: &Page, query: &str) -> (String, usize) {
    let mut html = show(page, &format!("/many?{query}"));
    for step in 0.. {
        let Some((_, form)) = html.split_once("action=\"/step\"") else { return (html, step) };
        let fields = form.split("</form>").next().unwrap().split("name=\"").skip(1).map(|field| {
            let (name, rest) = field.split_once("\" value=\"").unwrap();
            (name, rest.split('"').next().unwrap())
        });
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let next = send(page, post("/step"), &body);
        html = show(page, location(&next));
    }
    unreachable!()
}

#[test]
fn many_jobs_are_changed_in_steps() {
    let rig = Rig::new();
    let page = rig.page();
    let put = |name: &'static str, prefix: &str, n: usize| {
        let put = |n: usize| rig.scheduler.put_to(name, &n).key(&format!("{prefix}/{n}"));
        let _ = rig.scheduler.put_many((0..n).map(put)).wait().unwrap();
        rig.clock.advance(Duration::from_secs(1));
    };
    put("dies", "old", 1_200);
    put(EVIL, "other", 3);
    rig.clock.advance(Duration::from_secs(86_400));
    put("dies", "new", 5);
    let count = |state: State| rig.scheduler.stats().wait().unwrap().jobs.of(state);
    assert_eq!(count(State::Dead), 1_208);
    let _ = rig.scheduler.pause_handler("dies").wait().unwrap();
    let yesterday = "state=dead&handler=dies&until=2026-01-02&action=retry";
    let html = show(&page, &format!("/many?{yesterday}"));
    assert!(html.contains("more than 1\u{2009}000 jobs") && html.contains("old/0"), "{html}");
    assert!(!html.contains("data-go-on>"), "the first step is asked for by hand");
    assert_eq!(count(State::Dead), 1_208, "a look changes nothing");
    // What is put after the look is not among them.
    let (html, number) = steps(&page, yesterday);
    assert!(html.contains("<b>1\u{2009}200</b> wait again"), "{html}");
    assert_eq!((number, count(State::Dead), count(State::Waiting)), (3, 8, 1_200));
    assert!(rig.job("new/0").unwrap().state == State::Dead && rig.job("old/1199").unwrap().state == State::Waiting);
    // A key that is taken again keeps its dead job.
    let _ = rig.scheduler.put_to("dies", &1).key("new/3").send().wait().unwrap();
    let (html, _) = steps(&page, "state=dead&handler=dies&action=retry");
    assert!(html.contains("<b>4</b> wait again") && html.contains("1 were left as they were"), "{html}");
    let (html, _) = steps(&page, "state=waiting&key=old/&find=old/11&action=cancel");
    assert!(html.contains("<b>111</b> were cancelled"), "{html}");
    assert!(rig.job("old/11").is_none() && rig.job("old/12").is_some());
    let (html, number) = steps(&page, "state=waiting&key=nothing&action=cancel");
    assert!(html.contains("0 jobs") && number == 0);

    // Jobs that come between the look and the steps stay.
    let html = show(&page, "/many?state=waiting&key=old/1&action=cancel");
    let last = html.split_once("name=\"last\" value=\"").unwrap().1.split('"').next().unwrap().to_owned();
    rig.put("dies", "old/1-late", 60);
    let body = format!("{}&state=waiting&key=old/1&action=cancel&last={last}", form(&page));
    assert!(location(&send(&page, post("/step"), &body)).contains("done=1"));
    assert!(rig.job("old/1-late").is_some() && rig.job("old/10").is_none());
}

#[test]
fn a_change_of_many_jobs_needs_a_form_and_a_list_that_takes_it() {
    let rig = Rig::new();
    let page = rig.page();
    rig.put("mail", "a", 60);
    let body = "state=waiting&action=cancel&last=9";
    assert_eq!(send(&page, post("/step"), body).status(), StatusCode::FORBIDDEN);
    let foreign = Request::post("/step")
        .header(header::HOST, "localhost:8787")
        .header(header::ORIGIN, "http://evil.example")
        .extension(peer("127.0.0.1:40000"));
    assert_eq!(send(&page, foreign, &format!("{}&{body}", form(&page))).status(), StatusCode::FORBIDDEN);
    assert_eq!(ask(&page, get("/step")).status(), StatusCode::METHOD_NOT_ALLOWED);
    for wrong in ["state=all&action=cancel", "state=waiting&action=discard", "state=dead&action=run", "state=dead"] {
        assert_eq!(ask(&page, get(&format!("/many?{wrong}"))).status(), StatusCode::NOT_FOUND, "{wrong}");
        let said = send(&page, post("/step"), &format!("{}&{wrong}&last=9", form(&page)));
        assert_eq!(location(&said), "/jobs?said=not-now");
    }
    // Without the last job of a look nothing is changed.
    let said = send(&page, post("/step"), &format!("{}&state=waiting&action=cancel", form(&page)));
    assert_eq!(location(&said), "/jobs?said=not-now");
    let reads = rig.builder().read_only().build().unwrap();
    let html = show(&reads, "/many?state=waiting&action=cancel");
    assert!(!html.contains("<form") && html.contains("1 job"));
    for path in ["/jobs", "/jobs?state=dead"] {
        let html = show(&reads, path);
        assert!(!html.contains("/many?") && !html.contains("/new"), "{path}");
    }
    for path in ["/step", "/put", "/job/1/save"] {
        assert_eq!(send(&reads, post(path), &format!("form={}", "0".repeat(64))).status(), StatusCode::FORBIDDEN);
    }
    assert!(rig.job("a").is_some());
}

#[test]
fn jobs_are_put_by_a_form() {
    let rig = Rig::new();
    let page = rig.page();
    let form = form(&page);
    let put = |fields: &[(&str, &str)]| {
        let body = form_urlencoded::Serializer::new(form.clone()).extend_pairs(fields).finish();
        send(&page, post("/put"), &body)
    };
    assert!(show(&page, "/new").contains("<option value=\"mail\">"));
    let payload = "{\r\n  \"to\": \"a b\",\r\n  \"n\": 12345678901234567890.10\r\n}";
    let due = "2026-01-01T01:00:00";
    let placed = put(&[
        ("handler", "mail"),
        ("key", "k"),
        ("payload", payload),
        ("due", due),
        ("priority", "-3"),
        ("group", "g"),
        ("expires", "2026-01-01T02:00:00"),
        ("attempts", "3"),
        ("limit", "1.5"),
        ("unique-for", "60"),
        ("kept-for", "0"),
        ("at-most-once", "on"),
    ]);
    let job = rig.job("k").unwrap();
    assert_eq!(
        (job.terms.attempts, job.terms.limit, job.terms.at_most_once),
        (Some(3), Some(Duration::from_millis(1_500)), true)
    );
    assert_eq!((job.terms.unique_for, job.terms.kept_for), (Some(Duration::from_secs(60)), Some(Duration::ZERO)));
    assert_eq!(job.expires, Some(std::time::UNIX_EPOCH + Duration::from_secs(1_767_232_800)));
    let like = show(&page, &format!("/new?like={}", job.id.0));
    assert!(
        like.contains("name=\"limit\" min=\"0\" step=\"any\" value=\"1.5\"") && like.contains("at-most-once\" checked")
    );
    assert_eq!(location(&placed), format!("/job/{}?said=put", job.id.0));
    assert_eq!(&*job.payload, r#"{"to":"a b","n":12345678901234567890.10}"#, "as it was written");
    assert_eq!((job.priority, job.group.as_deref()), (-3, Some("g")));
    assert_eq!(job.due, Some(std::time::UNIX_EPOCH + Duration::from_secs(1_767_229_200)));
    // Without a key and a payload; it may have run by then.
    assert!(location(&put(&[("handler", "mail")])).starts_with("/job/"));
    // What is wrong is told, and nothing that was written is lost.
    let evil = "</textarea><script>alert(1)</script>";
    for (fields, reason) in [
        (vec![("handler", "mail"), ("payload", evil)], "The payload is no JSON"),
        (vec![("handler", "mail"), ("payload", evil), ("due", "soon")], "The payload is no JSON"),
        (vec![("handler", "mail"), ("due", "soon")], "The due time is none"),
        (vec![("handler", "mail"), ("priority", "10")], "priority"),
        (vec![("handler", "mail"), ("priority", "x")], "A priority lies between -9 and 9"),
        (vec![("handler", "mail"), ("expires", "soon")], "The last instant is none"),
        (vec![("handler", "mail"), ("attempts", "0")], "No number of attempts"),
        (vec![("handler", "mail"), ("limit", "-1")], "No number of seconds"),
        (vec![("handler", "mail"), ("kept-for", "NaN")], "No number of seconds"),
        (vec![("handler", "mail"), ("key", "k")], "Another job has this key"),
        (vec![("handler", "mail"), ("payload", r#""\u0000""#)], "NUL"),
        (vec![("handler", "nobody's")], "nobody&#39;s"),
        (vec![], "handler"),
    ] {
        let refused = put(&fields);
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{fields:?}");
        let html = text(refused);
        let told = html.split_once("role=\"alert\">").unwrap().1.split("</p>").next().unwrap();
        assert!(told.contains(reason) || reason.contains('&') && told.contains("nobody's"), "{told}");
        assert!(!html.contains("<script>alert"), "{fields:?}");
        if fields.iter().any(|(_, value)| *value == evil) {
            assert!(html.contains("&lt;/textarea&gt;&lt;script&gt;alert(1)"));
        }
    }
    let long = format!("\"{}\"", "x".repeat(300_000));
    assert!(text(put(&[("handler", "mail"), ("payload", &long)])).contains("role=\"alert\""));
    let longer = format!("\"{}\"", "x".repeat(900_000));
    assert_eq!(put(&[("handler", "mail"), ("payload", &longer)]).status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(rig.scheduler.list(Query::new()).wait().unwrap().len(), 2);
    // Like a dead one, under its key.
    rig.put("dies", "again", 0);
    rig.run();
    let html = show(&page, &format!("/new?like={}", rig.job("again").unwrap().id.0));
    assert!(
        html.contains("value=\"again\"") && html.contains("value=\"dies\"") && html.contains("&quot;payload&quot;")
    );
    assert!(!show(&page, &format!("/new?like={}", job.id.0)).contains("value=\"k\""));
    assert_eq!(ask(&page, get("/put")).status(), StatusCode::METHOD_NOT_ALLOWED);
}

/// What a field of a form shows.
fn text_of_input(html: &str, name: &str) -> String {
    let input = html.split_once(&format!("name=\"{name}\"")).unwrap().1.split('>').next().unwrap();
    input.split_once("value=\"").unwrap().1.split('"').next().unwrap().to_owned()
}

#[test]
fn parts_of_a_job_are_edited() {
    let rig = Rig::new();
    let page = rig.page();
    rig.put("mail", "a", 3_600);
    // The form shows seconds.
    let _ = rig.scheduler.move_to("a", Duration::from_micros(3_600_000_500)).wait().unwrap();
    let job = rig.job("a").unwrap();
    let open = |id: u64| {
        let html = show(&page, &format!("/job/{id}/edit"));
        let was = html.split_once("name=\"was\" value=\"").unwrap().1.split('"').next().unwrap().to_owned();
        (html, was)
    };
    let form = form(&page);
    let save = |id: u64, was: &str, fields: &[(&str, &str)]| {
        let mut body = form_urlencoded::Serializer::new(form.clone());
        send(&page, post(&format!("/job/{id}/save")), &body.append_pair("was", was).extend_pairs(fields).finish())
    };
    let (html, was) = open(job.id.0);
    let pretty = "[\n  \"payload\"\n]";
    assert!(html.contains(&pretty.replace('"', "&quot;")) && html.contains("value=\"2026-01-01T01:00:00\""));
    // Nothing but the priority.
    let fields = [("payload", "[\r\n  \"payload\"\r\n]"), ("due", "2026-01-01T01:00:00"), ("priority", "4")];
    let said = |id: u64, word: &str| format!("/job/{id}?said={word}");
    assert_eq!(location(&save(job.id.0, &was, &fields)), said(job.id.0, "edited"));
    let edited = rig.job("a").unwrap();
    assert_eq!((edited.priority, &edited.payload, edited.due), (4, &job.payload, job.due));
    assert_eq!(location(&save(job.id.0, &was, &fields)), said(job.id.0, "outdated"), "the form is of the job before");
    let (_, was) = open(job.id.0);
    let fields = [("payload", "{\"to\": 1}"), ("due", "2026-01-01T00:30:00"), ("priority", "0")];
    assert_eq!(location(&save(job.id.0, &was, &fields)), said(job.id.0, "edited"));
    let edited = rig.job("a").unwrap();
    assert_eq!((edited.priority, &*edited.payload), (0, "{\"to\":1}"));
    assert_eq!(edited.due, Some(std::time::UNIX_EPOCH + Duration::from_secs(1_767_227_400)));
    let (_, was) = open(job.id.0);
    let wrong = save(job.id.0, &was, &[("payload", "{"), ("priority", "0")]);
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert!(text(wrong).contains(&format!("action=\"/job/{}/save\"", job.id.0)), "the form again");
    let wrong = save(job.id.0, &was, &[("payload", "1"), ("priority", "11")]);
    assert_eq!(wrong.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(&*rig.job("a").unwrap().payload, "{\"to\":1}");
    // Terms, one by one; what stays as it is shown is left alone.
    let shown = [("payload", "{\"to\": 1}"), ("priority", "0"), ("due", "2026-01-01T00:30:00")];
    let day = Duration::from_secs(86_400);
    let change = |fields: &[(&str, &str)]| {
        let (_, was) = open(job.id.0);
        assert_eq!(location(&save(job.id.0, &was, &[&shown[..], fields].concat())), said(job.id.0, "edited"));
        rig.job("a").unwrap()
    };
    let edit = rig.scheduler.edit("a").limit(Duration::from_micros(1_500_001)).expires(day);
    let _ = edit.send().wait().unwrap();
    let before = rig.job("a").unwrap();
    let last = text_of_input(&show(&page, &format!("/job/{}/edit", job.id.0)), "expires");
    let kept = [("limit", "1.500001"), ("expires", &last)];
    let edited = change(
        &[&kept[..], &[("attempts", "2"), ("unique-for", "5"), ("kept-for", "7"), ("at-most-once", "on")]].concat(),
    );
    assert_eq!((edited.terms.limit, edited.expires), (before.terms.limit, before.expires));
    assert_eq!((edited.terms.attempts, edited.terms.at_most_once), (Some(2), true));
    assert_eq!(
        (edited.terms.unique_for, edited.terms.kept_for),
        (Some(Duration::from_secs(5)), Some(Duration::from_secs(7)))
    );
    let (html, was) = open(job.id.0);
    assert!(html.contains("<details open>") && html.contains("name=\"attempts\" min=\"1\" step=\"1\" value=\"2\""));
    let _ = rig.scheduler.edit("a").attempts(9).send().wait().unwrap();
    assert_eq!(location(&save(job.id.0, &was, &shown)), said(job.id.0, "outdated"), "the terms are others");
    let edited = change(&[]);
    assert_eq!((edited.terms, edited.expires), (job.terms, None), "none of its own");
    // A schedule has no due time of its own.
    let every = Schedule::every(Duration::from_secs(60)).build().unwrap();
    let _ = rig.scheduler.put_to("mail", &1).key("r").schedule(every).send().wait().unwrap();
    let id = rig.job("r").unwrap().id.0;
    let (html, was) = open(id);
    assert!(!html.contains("name=\"due\""));
    assert!(!html.contains("name=\"expires\"") && !html.contains("<details open>"));
    let fields = [("payload", "2"), ("priority", "1"), ("expires-after", "0.5")];
    assert_eq!(location(&save(id, &was, &fields)), said(id, "edited"));
    let edited = rig.job("r").unwrap();
    assert_eq!((&*edited.payload, edited.priority, edited.expires_after), ("2", 1, Some(Duration::from_millis(500))));
    // Neither dead jobs nor those that are gone.
    let dead = rig.put("dies", "d", 0);
    rig.run();
    assert_eq!(ask(&page, get(&format!("/job/{}/edit", dead.id.0))).status(), StatusCode::NOT_FOUND);
    assert!(!show(&page, &format!("/job/{}", dead.id.0)).contains("/edit"));
    let _ = rig.scheduler.cancel("a").wait().unwrap();
    assert_eq!(location(&save(job.id.0, &was, &[])), "/jobs?said=gone");
}

#[test]
fn a_run_shows_its_node_and_a_job_without_one_is_marked() {
    let clock = ManualClock::new();
    clock.set_wall(std::time::UNIX_EPOCH + Duration::from_secs(1_767_225_600));
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let store = timerqueue_scheduler::store::MemoryStore::new(&runtime);
    let builder = || Scheduler::builder().runtime(&runtime).store(store.clone());
    let shown = builder().node_name("page").start().unwrap();
    let node = builder()
        .node_name("worker <7>")
        .async_handler("import", |_: u32, _: Run| std::future::pending::<()>())
        .spawner(std::mem::forget)
        .start()
        .unwrap();
    let _ = shown.put_to("import", &1).key("i").send().wait().unwrap();
    let _ = shown.put_to("nobody's", &1).key("lost").send().wait().unwrap();
    clock.advance(Duration::from_secs(65));
    let page = Page::builder(&shown).build().unwrap();
    let html = show(&page, "/jobs?state=running");
    assert!(html.contains("worker &lt;7&gt;") && html.contains("1 min 5 s ago"), "{html}");
    assert!(!html.contains("no node"));
    let run = shown.get("i").wait().unwrap().unwrap();
    let html = show(&page, &format!("/job/{}", run.id.0));
    assert!(html.contains("Runs since") && html.contains("worker &lt;7&gt;") && html.contains(">Put<"));
    assert!(show(&page, "/jobs").contains("no node") && show(&page, "/").contains("no node"));
    let lost = shown.get("lost").wait().unwrap().unwrap();
    assert!(show(&page, &format!("/job/{}", lost.id.0)).contains("No node that is up has this handler."));
    drop(node);
}

#[test]
fn an_old_form_changes_no_other_job() {
    let rig = Rig::new();
    let page = rig.page();
    let form = form(&page);
    let act = |id: u64, action: &str| {
        location(&send(&page, post(&format!("/job/{id}/{action}")), &format!("{form}&from=waiting"))).to_owned()
    };
    let first = rig.put("mail", "a", 3_600).id.0;
    let _ = rig.scheduler.cancel("a").wait().unwrap();
    let second = rig.put("mail", "a", 3_600);
    assert_eq!(act(first, "cancel"), "/jobs?state=waiting&said=gone");
    assert_eq!(rig.job("a").map(|job| job.id), Some(second.id));
    // A run of a schedule has the key of its schedule.
    let every = Schedule::every(Duration::from_secs(60)).build().unwrap();
    let _ = rig.scheduler.pause_handler("mail").wait().unwrap();
    let _ = rig.scheduler.put_to("mail", &()).key("r").schedule(every).send().wait().unwrap();
    let _ = rig.scheduler.run_now("r").wait().unwrap();
    let run = rig.scheduler.list(Query::new().state(State::Waiting).key_prefix("r")).wait().unwrap().remove(0);
    assert_eq!(act(run.id.0, "cancel"), "/jobs?state=waiting&said=not-now");
    assert_eq!(rig.job("r").unwrap().state, State::Recurring);
}

#[test]
fn a_change_needs_a_form_of_this_page() {
    let rig = Rig::new();
    let id = rig.put("mail", "a", 3_600).id.0;
    let page = rig.page();
    let form = form(&page);
    let path = format!("/job/{id}/cancel");
    let refused = |request: http::request::Builder, form: &str| {
        let response = send(&page, request, form);
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{}", text(response));
        assert!(rig.job("a").is_some());
    };
    refused(post(&path), "");
    refused(post(&path), "form=");
    refused(post(&path), "form=0123");
    let other = rig.page();
    refused(post(&path), &self::form(&other));
    let from = |origin: &str| {
        Request::post(&path)
            .header(header::HOST, "localhost:8787")
            .header(header::ORIGIN, origin)
            .extension(peer("[::1]:40000"))
    };
    for origin in [
        "null",
        "http://evil.example",
        "http://localhost",
        "http://localhost:8788",
        "http://localhost:8787.evil.example",
        "",
    ] {
        refused(from(origin), &form);
    }
    for site in ["cross-site", "same-site", "other"] {
        refused(post(&path).header("sec-fetch-site", site), &form);
    }
    for change in [&*path, "/handler/pause?name=mail"] {
        let response = ask(&page, get(change));
        assert_eq!(
            (response.status(), &response.headers()[header::ALLOW]),
            (StatusCode::METHOD_NOT_ALLOWED, &"POST".parse().unwrap())
        );
    }
    assert_eq!(send(&page, post("/jobs"), &form).status(), StatusCode::METHOD_NOT_ALLOWED);
    let long = format!("{form}&x={}", "x".repeat(5_000));
    assert_eq!(send(&page, post(&path), &long).status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(rig.job("a").is_some());
    let _ = location(&send(&page, from("http://localhost:8787").header("sec-fetch-site", "same-origin"), &form));
    assert!(rig.job("a").is_none());
}

#[test]
fn the_page_answers_by_its_own_names_alone() {
    let rig = Rig::new();
    let page = rig.page();
    let by = |page: &Page, host: &str| {
        ask(page, Request::get("/").header(header::HOST, host).extension(peer("127.0.0.1:1"))).status()
    };
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8787", "[::1]:80", "127.8.9.1", "localhost."] {
        assert_eq!(by(&page, host), StatusCode::OK, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::]",
        "x@localhost",
        "",
        "a b",
        "0",
    ] {
        assert_eq!(by(&page, host), StatusCode::MISDIRECTED_REQUEST, "{host}");
    }
    let none = Request::get("/").extension(peer("127.0.0.1:1"));
    assert_eq!(ask(&page, none).status(), StatusCode::MISDIRECTED_REQUEST);
    let two = get("/").header(header::HOST, "localhost");
    assert_eq!(ask(&page, two).status(), StatusCode::MISDIRECTED_REQUEST);
    let named = rig.builder().host("Jobs.Example.com.").callers_are_checked().build().unwrap();
    assert_eq!(by(&named, "jobs.example.com:443"), StatusCode::OK);
    assert_eq!(by(&named, "other.example.com"), StatusCode::MISDIRECTED_REQUEST);
}

#[test]
fn without_a_token_callers_of_this_machine_alone_are_answered() {
    let rig = Rig::new();
    let page = rig.page();
    let of = |page: &Page, address: Option<&str>| {
        let mut request = Request::get("/").header(header::HOST, "localhost");
        if let Some(address) = address {
            request = request.extension(peer(address));
        }
        ask(page, request).status()
    };
    for address in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert_eq!(of(&page, Some(address)), StatusCode::OK);
    }
    for address in [Some("10.0.0.7:1"), Some("[2001:db8::1]:1"), None] {
        assert_eq!(of(&page, address), StatusCode::FORBIDDEN, "{address:?}");
    }
    let open = rig.builder().callers_are_checked().build().unwrap();
    assert_eq!(of(&open, None), StatusCode::OK);
    let build = |builder: PageBuilder| builder.build().map(|_| ());
    assert_eq!(build(rig.builder().host("a.example")), Err(BuildError::NoToken { host: "a.example".into() }));
    assert_eq!(build(rig.builder().host("localhost")), Ok(()));
    assert_eq!(build(rig.builder().token("short")), Err(BuildError::WeakToken));
    for path in ["admin", "//evil", "/a?b", "/a b"] {
        assert!(matches!(build(rig.builder().at(path)), Err(BuildError::InvalidPath { .. })), "{path}");
    }
}

/// A proxy on this machine has a local address and may ask by a local name, and its caller may be
/// anywhere.
#[test]
fn without_a_token_no_request_of_a_proxy_is_answered() {
    let rig = Rig::new();
    let job = rig.put("mail", "a", 60);
    let (page, path) = (rig.page(), format!("/job/{}/cancel", job.id.0));
    let form = form(&page);
    let marks = [
        ("forwarded", "for=192.0.2.43"),
        ("x-forwarded-for", ""),
        ("x-forwarded-host", "jobs.example.com"),
        ("x-real-ip", "192.0.2.43"),
        ("via", "1.1 proxy"),
        ("cf-connecting-ip", "192.0.2.43"),
    ];
    for (name, value) in marks {
        assert_eq!(ask(&page, get("/").header(name, value)).status(), StatusCode::FORBIDDEN, "{name}");
        assert_eq!(send(&page, post(&path).header(name, value), &form).status(), StatusCode::FORBIDDEN, "{name}");
    }
    assert_eq!(ask(&page, get("/").version(http::Version::HTTP_10)).status(), StatusCode::FORBIDDEN);
    // A program that says nothing of its origin: no browser.
    let silent = || Request::post(&path).header(header::HOST, "localhost:8787").extension(peer("127.0.0.1:40000"));
    assert_eq!(send(&page, silent(), &form).status(), StatusCode::FORBIDDEN);
    assert!(rig.job("a").is_some());

    // With a token, or a server that checks its callers, a proxy may stand in front.
    let through = |request: http::request::Builder| request.header("x-forwarded-for", "192.0.2.43");
    let token = rig.builder().random_token().build().unwrap();
    let bearer = format!("Bearer {}", token.token().unwrap());
    assert_eq!(ask(&token, through(get("/"))).status(), StatusCode::UNAUTHORIZED);
    assert_eq!(ask(&token, through(get("/")).header(header::AUTHORIZATION, bearer)).status(), StatusCode::OK);
    let open = rig.builder().callers_are_checked().build().unwrap();
    assert_eq!(ask(&open, through(get("/"))).status(), StatusCode::OK);
    let form = self::form(&open);
    let _ = location(&send(&open, through(silent()), &form));
    assert!(rig.job("a").is_none());
}

#[test]
fn a_random_token_is_made_for_each_page() {
    let rig = Rig::new();
    let of = || rig.builder().token("0123456789abcdef").random_token().build().unwrap().token().unwrap().to_owned();
    let (one, two) = (of(), of());
    assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()) && one != two, "{one} {two}");
}

fn cookie(response: &Response<Body>) -> &str {
    response.headers()[header::SET_COOKIE].to_str().unwrap()
}

#[test]
fn with_a_token_each_caller_needs_it_once() {
    let rig = Rig::new();
    let page = rig.builder().token(TOKEN).build().unwrap();
    let far = |path: &str| Request::get(path).header(header::HOST, "10.0.0.7:8787").extension(peer("10.0.0.9:1"));
    let asked = ask(&page, far("/"));
    assert_eq!(asked.status(), StatusCode::UNAUTHORIZED);
    let html = text(asked);
    assert!(html.contains("type=\"password\"") && !html.contains("Overview</h1>"));
    for wrong in
        ["/?token=", "/?token=0123456789abcdef", &format!("/?token={TOKEN}x"), "/jobs", "/icon.svg", "/nonsense"]
    {
        assert_eq!(ask(&page, far(wrong)).status(), StatusCode::UNAUTHORIZED, "{wrong}");
    }
    assert_eq!(
        ask(&page, Request::get("/").header(header::HOST, "evil.example")).status(),
        StatusCode::MISDIRECTED_REQUEST
    );
    // In the URL: the answer takes it away.
    let begun = ask(&page, far(&format!("/jobs?state=dead&token={TOKEN}")));
    assert_eq!(begun.status(), StatusCode::OK);
    let session = cookie(&begun).to_owned();
    assert!(
        session.starts_with("timerqueue-8787=") && session.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
        "{session}"
    );
    assert!(!session.contains(TOKEN));
    let html = text(begun);
    assert!(html.contains("0;url=/jobs?state=dead") && !html.contains(TOKEN), "{html}");
    let twice = ask(&page, far(&format!("//jobs?token={TOKEN}")));
    assert!(text(twice).contains("0;url=/jobs\""), "no name of a host");
    let pair = session.split(';').next().unwrap();
    assert_eq!(ask(&page, far("/").header(header::COOKIE, format!("a=b; {pair}"))).status(), StatusCode::OK);
    for wrong in [
        format!("{pair}0"),
        "timerqueue-8787=".to_owned(),
        format!("timerqueue-8787={TOKEN}"),
        pair.replace("8787", "8788"),
    ] {
        assert_eq!(ask(&page, far("/").header(header::COOKIE, &wrong)).status(), StatusCode::UNAUTHORIZED, "{wrong}");
    }
    assert_eq!(ask(&page, far("/").header(header::AUTHORIZATION, format!("Bearer {TOKEN}"))).status(), StatusCode::OK);
    // In the form.
    let login = |form: &str, origin: &str| {
        let request = Request::post("/login").header(header::HOST, "10.0.0.7:8787").header(header::ORIGIN, origin);
        send(&page, request, form)
    };
    let good = format!("token={TOKEN}");
    assert_eq!(login("token=no", "http://10.0.0.7:8787").status(), StatusCode::UNAUTHORIZED);
    assert_eq!(login(&good, "http://evil.example").status(), StatusCode::UNAUTHORIZED);
    let begun = login(&good, "http://10.0.0.7:8787");
    assert_eq!((location(&begun), cookie(&begun)), ("/", &*session));
    // A change needs its form beside the session.
    let change =
        Request::post("/handler/pause?name=mail").header(header::HOST, "10.0.0.7:8787").header(header::COOKIE, pair);
    assert_eq!(send(&page, change, "").status(), StatusCode::FORBIDDEN);
    let secure = rig.builder().token(TOKEN).https().at("/jobs").build().unwrap();
    let begun = ask(&secure, far(&format!("/jobs/?token={TOKEN}")));
    assert!(cookie(&begun).ends_with("; Path=/jobs; HttpOnly; SameSite=Strict; Secure"), "{}", cookie(&begun));
}

#[test]
fn the_policy_runs_the_scripts_of_the_page_alone() {
    let rig = Rig::new();
    let page = rig.page();
    let mut nonces = Vec::new();
    for path in ["/", "/jobs", "/job/7", "/nonsense"] {
        let response = ask(&page, get(path));
        let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
        for (name, value) in
            [("cache-control", "no-store"), ("x-frame-options", "DENY"), ("x-content-type-options", "nosniff")]
        {
            assert_eq!(response.headers()[name], value, "{path}");
        }
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        let nonce = policy.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
        let html = text(response);
        assert_eq!(html.matches(&format!("<style nonce=\"{nonce}\">")).count(), 1);
        assert_eq!(html.matches("<script").count(), html.matches(&format!("<script nonce=\"{nonce}\">")).count());
        assert!(!html.contains("style=\"") && !html.contains("http://") && !html.contains("https://"), "{path}");
        nonces.push(nonce);
    }
    nonces.dedup();
    assert_eq!(nonces.len(), 4);
    let icon = ask(&page, get("/icon.svg"));
    assert_eq!(icon.headers()[header::CONTENT_TYPE], "image/svg+xml");
}

#[test]
fn links_have_the_place_where_the_page_is_mounted() {
    let rig = Rig::new();
    rig.put("mail", "a", 60);
    let whole = rig.builder().at("/admin/jobs/").build().unwrap();
    let nested = rig.builder().nested_at("/jobs").build().unwrap();
    for (page, prefix, path) in [(&whole, "/admin/jobs", "/admin/jobs/jobs"), (&nested, "/jobs", "/jobs")] {
        let html = show(page, path);
        assert!(html.contains("<h1>Waiting</h1>"));
        let links = html.split("href=\"").chain(html.split("action=\"")).chain(html.split("src=\""));
        let wrong: Vec<&str> =
            links.filter(|rest| rest.starts_with('/') && !rest.starts_with(&format!("{prefix}/"))).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
    assert_eq!(ask(&whole, get("/admin/jobs")).status(), StatusCode::OK);
    for outside in ["/", "/jobs", "/admin/jobsx", "/admin"] {
        assert_eq!(ask(&whole, get(outside)).status(), StatusCode::NOT_FOUND, "{outside}");
    }
}

#[test]
fn a_read_only_page_has_no_forms() {
    let rig = Rig::new();
    let id = rig.put("dies", "a", 0).id.0;
    rig.run();
    let secret = form(&rig.page());
    let page = rig.builder().read_only().build().unwrap();
    for path in ["/", "/jobs?state=dead", "/schedules", &format!("/job/{id}")] {
        assert!(!show(&page, path).contains("method=\"post\""), "{path}");
    }
    assert_eq!(send(&page, post(&format!("/job/{id}/retry")), &secret).status(), StatusCode::FORBIDDEN);
}

#[test]
fn a_head_request_gets_no_body() {
    let rig = Rig::new();
    let page = rig.page();
    let head = Request::head("/").header(header::HOST, "localhost").extension(peer("127.0.0.1:1"));
    let response = ask(&page, head);
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.into_body().into_bytes().is_empty());
}
