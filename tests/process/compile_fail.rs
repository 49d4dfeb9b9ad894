//! Wrong uses of the crate: programs that must not compile, and parts of the compiler's messages.
//! Only parts, so that the test survives other compilers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that this test was linked with, or another build of the same sources.
fn library() -> (PathBuf, PathBuf) {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder").to_owned();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("libtimerqueue-") && name.ends_with(".rlib")
    };
    let built = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).expect("a time");
    let files = fs::read_dir(&folder).expect("readable").filter_map(|entry| Some(entry.ok()?.path()));
    (files.filter(is_ours).max_by_key(built).expect("the library is built"), folder)
}

struct Compiler {
    library: PathBuf,
    dependencies: PathBuf,
    scratch: PathBuf,
}

impl Compiler {
    fn new() -> Self {
        let (library, dependencies) = library();
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile_fail");
        fs::create_dir_all(&scratch).expect("writable");
        Self { library, dependencies, scratch }
    }

    /// Whether the program compiles, and what the compiler says.
    fn compile(&self, name: &str, body: &str) -> (bool, String) {
        let source = self.scratch.join(name).with_extension("rs");
        let prelude = "#![deny(unused_must_use)]\nuse std::rc::Rc; use std::time::Duration; use timerqueue::*;\n";
        let allow = "#![allow(unused_imports, unused_variables, unused_mut, unused_assignments, dead_code)]\n";
        fs::write(&source, format!("{allow}{prelude}const SECOND: Duration = Duration::from_secs(1);\n{body}\n"))
            .expect("writable");
        let beside_cargo = Path::new(env!("CARGO")).with_file_name("rustc");
        let set = std::env::var_os("RUSTC").map(PathBuf::from);
        let output = Command::new(set.unwrap_or(if beside_cargo.exists() { beside_cargo } else { "rustc".into() }))
            .args(["--edition", "2024", "--crate-type", "lib", "--crate-name", name, "--emit", "metadata", "--out-dir"])
            .args([&self.scratch, &source])
            .arg("--extern")
            .arg(format!("timerqueue={}", self.library.display()))
            .arg("-L")
            .arg(format!("dependency={}", self.dependencies.display()))
            .output()
            .expect("the compiler that built this test");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Name, program, parts of the message.
const WRONG: &[(&str, &str, &[&str])] = &[
    (
        "state_in_an_overlapping_callback",
        "fn f() { let mut n = 0; let timer = Timer::new(SECOND, SECOND, move |_| n += 1); }",
        &["cannot assign to `n`", "`Fn` closure"],
    ),
    (
        "borrowed_data",
        "fn f() { let name = String::new(); let timer = Timer::once(SECOND, |_| println!(\"{name}\")); }",
        &["closure may outlive the current function", "use the `move` keyword"],
    ),
    (
        "data_of_a_thread",
        "fn f() { let name = Rc::new(1); let timer = Timer::once(SECOND, move |_| println!(\"{name}\")); }",
        &["`Rc<i32>` cannot be sent between threads safely", "Timer::once"],
    ),
    (
        "a_tick_that_is_kept",
        "fn f() { let (send, _got) = std::sync::mpsc::channel(); let timer = Timer::every(SECOND, move |tick| { let _ = send.send(tick); }); }",
        &["borrowed data escapes outside of closure"],
    ),
    (
        "a_timer_let_go",
        "fn f() { Timer::new(SECOND, SECOND, |_| {}); }",
        &["Timer` that must be used", "dropping the handle disposes the timer", "`let _timer = ..`", "`detach`"],
    ),
    ("a_one_shot_let_go", "fn f() { Timer::once(SECOND, |_| {}); }", &["OnceTimer` that must be used", "`detach` it"]),
    (
        "a_delay_let_go",
        "fn f() { Delay::new(SECOND); }",
        &["Delay` that must be used", "does nothing until it is awaited or polled"],
    ),
    ("a_timeout_let_go", "fn f() { timeout(SECOND, async {}); }", &["that must be used"]),
    ("a_builder_let_go", "fn f() { Timer::builder().due(SECOND); }", &["a builder does nothing until `start`"]),
    (
        "a_registration_let_go",
        "fn f(token: &CancellationToken) { token.register(|| {}); }",
        &["dropping a registration unregisters the callback"],
    ),
    ("a_debounce_let_go", "fn f() { util::Debounce::new(SECOND, || {}); }", &["dropping it disposes its timer"]),
    ("a_number_as_time", "fn f() { let timer = Timer::once(5, |_| {}); }", &["expected `Duration`, found integer"]),
    (
        "a_queue_with_data_of_a_thread",
        "fn f(queue: DelayQueue<u8, Rc<u8>>) { std::thread::spawn(move || queue.len()); }",
        &["`Rc<u8>` cannot be sent between threads safely"],
    ),
    (
        "a_job_that_borrows",
        "fn f(runtime: &Runtime) { let n = 1; runtime.execute(|| println!(\"{n}\")); }",
        &["closure may outlive the current function"],
    ),
];

const RIGHT: &str = "fn f() { let mut n = 0; let timer = Timer::every(SECOND, move |tick| { n += 1; let _ = tick.scheduled(); }); drop(timer);
    let name = Rc::new(1); let there: DelayQueue<u8, String> = DelayQueue::new(); std::thread::spawn(move || there.len()); }";

#[test]
fn misuse_does_not_compile_and_the_message_says_why() {
    let compiler = Compiler::new();
    let (compiles, message) = compiler.compile("right", RIGHT);
    assert!(compiles, "{message}");
    for (name, program, parts) in WRONG {
        let (compiles, message) = compiler.compile(name, program);
        assert!(!compiles, "{name} compiles");
        for part in *parts {
            assert!(message.contains(part), "{name}: no {part:?} in\n{message}");
        }
    }
}
