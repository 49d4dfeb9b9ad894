//! Consistency rules of the source tree: layers, names in documents, widths, words.
//!
//! Each rule is a function over text, and is also tested on a text that breaks the rule.

#[path = "tidy/figures.rs"]
mod figures;
#[path = "tidy/jobs.rs"]
mod jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers of `src`, bottom up. A module uses only lower layers; the modules of a layer do not
/// use each other.
const LAYERS: &[&[&str]] = &[
    &["sync"],
    &["sys", "time"],
    &["unwind", "budget", "histogram", "one_drop", "ordered_map", "slab"],
    &["queue"],
    &["alarm"],
    &["pool"],
    &["engine"],
    &["runtime"],
    &["timer"],
    &["cancellation"],
    &["future"],
    &["delay_queue"],
    &["thread", "util"],
];

/// Modules of the public API: they take no lock of a queue.
const PUBLIC: &[&str] = &["runtime", "timer", "cancellation", "future", "delay_queue", "thread", "util"];

/// Functions of `src` are a screen long.
const LONGEST_FUNCTION: usize = 70;
const WIDEST_COMMENT: usize = 100;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All files of the project below a folder with this ending, by path from the root.
fn files(folder: &str, ending: &str) -> BTreeMap<String, String> {
    /// What was built, and libraries of the peers.
    const OTHERS: [&str; 3] = ["target", "node_modules", "venv"];
    fn walk(folder: &Path, ending: &str, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                if entry.file_name().is_none_or(|name| OTHERS.iter().all(|other| name != *other)) {
                    walk(&entry, ending, found);
                }
            } else if entry.to_string_lossy().ends_with(ending) {
                let name = entry.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
                found.insert(name, fs::read_to_string(&entry).expect("text"));
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(&root().join(folder), ending, &mut found);
    found
}

/// The code of a file: without comments, and without the tests at its end.
fn code(text: &str) -> String {
    let text = match text.find("\nmod tests") {
        Some(tests) => &text[..text[..tests].rfind("\n\n").unwrap_or(tests)],
        None => text,
    };
    let without = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    text.lines().map(without).collect::<Vec<_>>().join("\n")
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("tests.rs")
        || path.contains("/tests/")
        || ["reference.rs", "check.rs", "contract.rs", "conformance.rs", "fake.rs"]
            .iter()
            .any(|end| path.ends_with(end))
}

/// The module at the top of the crate that a file of `src` belongs to.
fn module(path: &str) -> &str {
    path.trim_start_matches("src/").split('/').next().unwrap_or_default().trim_end_matches(".rs")
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The modules named by `crate::` in a text.
fn uses(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        found.insert(name);
        assert!(!rest.starts_with('{'), "one `use` line for each module: it is read by this test");
    }
    found
}

/// The uses in a file that break the rule of layers.
fn wrong_uses(path: &str, text: &str) -> Vec<String> {
    let own = module(path);
    if own == "lib" {
        return Vec::new();
    }
    let Some(own_layer) = layer(own) else { return vec![format!("{path}: `{own}` is in no layer")] };
    let upward = |used: &String| used != own && layer(used).is_some_and(|used| used >= own_layer);
    uses(&code(text)).iter().filter(|used| upward(used)).map(|used| format!("{path} uses `{used}`")).collect()
}

fn names_a_primitive_of_its_own(text: &str) -> bool {
    let named = ["std::sync::atomic", "parking_lot::", "std::sync::Mutex", "std::sync::OnceLock", "std::sync::Condvar"];
    let code = code(text);
    named.iter().any(|name| code.contains(name))
}

/// So models see them, and an audit counts them (`tests/process/audit.md`).
#[test]
fn atomics_and_locks_come_from_one_file() {
    let wrong = |path: &str, text: &str| !path.starts_with("src/sync") && names_a_primitive_of_its_own(text);
    assert!(wrong("src/pool/mod.rs", "use std::sync::atomic::AtomicU64;"));
    assert!(!wrong("src/pool/mod.rs", "use crate::sync::AtomicU64; // not std::sync::Arc\n/// use std::sync::Mutex;"));
    let files = files("src", ".rs");
    let wrong: Vec<&String> =
        files.iter().filter(|(path, text)| !is_test_file(path) && wrong(path, text)).map(|(path, _)| path).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn modules_use_lower_layers_alone() {
    let wrong: Vec<String> = files("src", ".rs")
        .iter()
        .filter(|(path, _)| !is_test_file(path))
        .flat_map(|(path, text)| wrong_uses(path, text))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let modules: BTreeSet<String> = files("src", ".rs").keys().map(|path| module(path).to_owned()).collect();
    for name in LAYERS.concat() {
        assert!(modules.contains(name), "there is no module `{name}`");
    }
    // The rule finds a wrong use.
    assert_eq!(wrong_uses("src/queue/list.rs", "use crate::engine::Engine;").len(), 1);
    assert_eq!(wrong_uses("src/queue/list.rs", "use crate::time::NEVER; // crate::engine").len(), 0);
    assert_eq!(wrong_uses("src/new.rs", "").len(), 1);
}

#[test]
fn public_modules_take_no_lock_of_a_queue() {
    let wrong = |path: &str, text: &str| PUBLIC.contains(&module(path)) && code(text).contains("shard().lock()");
    assert!(wrong("src/timer/mod.rs", "self.entry.shard().lock()"));
    assert!(!wrong("src/timer/mod.rs", "// shard().lock()") && !wrong("src/engine/entry.rs", "shard().lock()"));
    let files = files("src", ".rs");
    let wrong: Vec<&String> =
        files.iter().filter(|(path, text)| !is_test_file(path) && wrong(path, text)).map(|(path, _)| path).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The longest function of a file: its name and its lines.
fn longest_function(text: &str) -> (String, usize) {
    let (mut longest, mut open) = ((String::new(), 0), None::<(String, usize, usize)>);
    for (i, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let words = line.trim_start();
        let is_fn = words.split('(').next().is_some_and(|before| before.split(' ').any(|word| word == "fn"));
        if open.is_none() && is_fn && !words.starts_with("//") && !words.ends_with(';') && !words.ends_with('}') {
            open = Some((words.split('(').next().unwrap_or_default().to_owned(), indent, i));
        } else if let Some((name, at, from)) = &open {
            if indent == *at && words.starts_with('}') {
                if i - from + 1 > longest.1 {
                    longest = (name.clone(), i - from + 1);
                }
                open = None;
            }
        }
    }
    longest
}

#[test]
fn functions_can_be_read_in_one_go() {
    for (path, text) in files("src", ".rs") {
        let (name, lines) = longest_function(&text);
        assert!(lines <= LONGEST_FUNCTION, "{path}: `{name}` has {lines} lines");
    }
    let long = format!("fn long() {{\n{}}}\n", "    x();\n".repeat(80));
    assert_eq!(longest_function(&long), (String::from("fn long"), 82));
}

/// Lines of comments that are wider than `WIDEST_COMMENT`. Tables and drawings may be wider, and
/// unless `examples` count, the code of examples.
fn wide_comments(text: &str, examples: bool) -> Vec<&str> {
    let (mut in_fence, mut in_example) = (false, false);
    let is_wide = |line: &&str| {
        let words = line.trim_start();
        if !words.starts_with("//") {
            return false;
        }
        let words = words.trim_start_matches(['/', '!']);
        if let Some(language) = words.trim_start().strip_prefix("```") {
            in_fence ^= true;
            in_example = in_fence && language != "text";
        }
        let drawn =
            in_fence || words.starts_with(" |") || words.trim_start().contains("   ") || words.contains("-----");
        let longest = words.split(' ').map(str::len).max().unwrap_or_default();
        let counts = if in_example { examples } else { !drawn && longest < 60 };
        counts && line.chars().count() > WIDEST_COMMENT
    };
    text.lines().filter(is_wide).collect()
}

/// Public enums without a variant to come, which programs may match without a rest.
const CLOSED: [(&str, &str); 4] = [
    ("Due", "a time, an instant, a time of the wall clock"),
    ("TimeoutError", "time or token: the result is no error (S50)"),
    ("CronField", "the fields of a cron expression"),
    ("CalendarUnit", "the units of a calendar"),
];

/// The public enums of a file that a later version cannot add a variant to.
fn exhaustive_enums(text: &str) -> Vec<&str> {
    let mut open = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("pub enum ") {
            Some(rest) if !open => found.push(rest.split([' ', '<']).next().unwrap_or_default()),
            None if line.starts_with("#[") || line.starts_with("//") => open |= line == "#[non_exhaustive]",
            _ => open = false,
        }
    }
    found
}

#[test]
fn public_enums_may_grow() {
    let crates = files("crates", ".rs").into_iter().filter(|(path, _)| path.contains("/src/"));
    let mut found: Vec<(String, String)> = Vec::new();
    for (path, text) in files("src", ".rs").into_iter().chain(crates) {
        found.extend(exhaustive_enums(&text).into_iter().map(|name| (path.clone(), name.to_owned())));
    }
    let closed = |name: &str| CLOSED.iter().any(|&(closed, _)| closed == name);
    let wrong: Vec<_> = found.iter().filter(|(_, name)| !closed(name)).collect();
    assert!(wrong.is_empty(), "neither `#[non_exhaustive]` nor closed: {wrong:?}");
    let gone: Vec<_> = CLOSED.iter().filter(|(name, _)| !found.iter().any(|(_, found)| found == name)).collect();
    assert!(gone.is_empty(), "closed, and not there: {gone:?}");
    assert_eq!(exhaustive_enums("#[non_exhaustive]\n/// A.\npub enum A {\n}\n/// B.\npub enum B {\n"), ["B"]);
}

#[test]
fn comments_fit_beside_each_other() {
    for folder in ["src", "tests", "loom-tests", "examples", "benches", "crates"] {
        for (path, text) in files(folder, ".rs") {
            assert_eq!(wide_comments(&text, folder == "src"), [""; 0], "{path}");
        }
    }
    let wide = "x ".repeat(60);
    let fence = |language: &str| format!("/// ```{language}\n/// {wide}\n/// ```\n");
    let text = format!("// {wide}\n{}let a = \"{wide}\";\n    //! | {wide} |\n", fence("text"));
    assert_eq!(wide_comments(&text, true).len(), 1);
    assert_eq!([true, false].map(|examples| wide_comments(&fence(""), examples).len()), [1, 0]);
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The texts between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// The names of tests, models and files in a document that are not in `known`, the set of all
/// functions, modules and files.
fn unknown_names<'a>(document: &'a str, known: &BTreeSet<String>) -> Vec<&'a str> {
    let is_name = |name: &str| {
        let last = name.rsplit("::").next().unwrap_or(name);
        name.ends_with(".rs")
            || last.matches('_').count() >= 3
                && last.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let last = |name: &str| name.rsplit(['/', ':']).next().unwrap_or(name).to_owned();
    quoted(document).into_iter().filter(|name| is_name(name) && !known.contains(&last(name))).collect()
}

/// Groups of tests in a document, written as `module::begin_*`, of which there is none.
/// `functions`: path and name.
fn unknown_groups<'a>(document: &'a str, functions: &[(String, String)]) -> Vec<&'a str> {
    let exists = |name: &str| {
        let (module, begin) = name.trim_end_matches('*').rsplit_once("::").unwrap_or(("", name.trim_end_matches('*')));
        let module = module.rsplit("::").next().unwrap_or_default();
        functions.iter().any(|(path, function)| {
            function.starts_with(begin)
                && (module.is_empty() || path.split('/').any(|part| part.trim_end_matches(".rs") == module))
        })
    };
    let is_group =
        |name: &&str| name.ends_with("_*") && !name.contains([' ', '/']) && name.starts_with(char::is_lowercase);
    quoted(document).into_iter().filter(is_group).filter(|name| !exists(name)).collect()
}

#[test]
fn tests_and_models_that_documents_name_exist() {
    let mut functions = Vec::new();
    let mut known = BTreeSet::new();
    for folder in ["src", "tests", "loom-tests", "examples", "benches"] {
        for (path, text) in files(folder, ".rs") {
            known.extend(path.rsplit('/').take(1).map(str::to_owned));
            for word in ["fn ", "mod ", "const "] {
                let names = text.split(word).skip(1).map(|rest| {
                    rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
                });
                known.extend(names);
            }
            let names = text.split("fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap_or_default());
            functions.extend(names.map(|name| (path.clone(), name.to_owned())));
        }
    }
    for path in ["docs/VERIFICATION.md", "DESIGN.md", "docs/LAYERS.md", "docs/PLATFORM.md", "CONTRIBUTING.md"] {
        let text = read(path);
        assert_eq!(unknown_names(&text, &known), [""; 0], "{path}");
        assert_eq!(unknown_groups(&text, &functions), [""; 0], "{path}");
    }
    assert_eq!(unknown_groups("`tidy::tests_and_*`, `tidy::gone_*`, `gone::tests_*`", &functions).len(), 2);
    assert_eq!(
        unknown_names("`a_test_that_is_gone`, `tests/gone.rs`", &known),
        ["a_test_that_is_gone", "tests/gone.rs"]
    );
}

/// The paths in a text that are written as `folder/…/file.rs`, without line numbers.
fn paths(text: &str) -> Vec<&str> {
    let is_path = |name: &&str| {
        let first = name.split('/').next().unwrap_or_default();
        ["src", "tests", "loom-tests", "benches", "examples", "docs", "crates", ".ci"].contains(&first)
            && name.contains('/')
            && !name.contains(['*', ' ', '{', '<', '$'])
    };
    quoted(text).into_iter().filter(is_path).collect()
}

/// Modules in a text that are written as `layer::module…`, the layers being those of the core,
/// which are no such module.
fn unknown_modules<'a>(text: &'a str, modules: &BTreeSet<String>) -> Vec<&'a str> {
    let layers: BTreeSet<&str> = modules.iter().filter_map(|module| module.split("::").next()).collect();
    let is_unknown = |name: &&str| {
        let mut parts = name.split("::");
        let (Some(layer), Some(part)) = (parts.next(), parts.next()) else { return false };
        let is_module = part.chars().all(|c| c.is_ascii_lowercase() || c == '_') && !part.is_empty();
        layers.contains(layer) && is_module && !modules.contains(&format!("{layer}::{part}"))
    };
    quoted(text).into_iter().filter(is_unknown).collect()
}

#[test]
fn files_and_modules_that_documents_name_exist() {
    let mut modules = BTreeSet::new();
    for (path, text) in files("src", ".rs") {
        let module = path["src/".len()..path.len() - ".rs".len()].trim_end_matches("/mod").replace('/', "::");
        // Functions that stand directly in a layer are named in the same way.
        if !module.contains("::") {
            let functions = text.split("fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap_or_default());
            modules.extend(functions.map(|function| format!("{module}::{function}")));
        }
        modules.insert(module);
    }
    for path in [
        "README.md",
        "DESIGN.md",
        "CONTRIBUTING.md",
        "docs/BENCHMARKS.md",
        "docs/LAYERS.md",
        "docs/PLATFORM.md",
        "docs/VERIFICATION.md",
    ] {
        let text = read(path);
        let missing: Vec<&str> = paths(&text).into_iter().filter(|path| !root().join(path).exists()).collect();
        assert_eq!(missing, [""; 0], "{path}");
        assert_eq!(unknown_modules(&text, &modules), [""; 0], "{path}");
    }
    assert_eq!(paths("`tests/gone.rs` and `queue::level`"), ["tests/gone.rs"]);
    assert_eq!(unknown_modules("`queue::gone`, `queue::level::Fine`, `std::time`", &modules), ["queue::gone"]);
}

/// The code lines of each function with this name: of a type, if the name is written as
/// `Type::name`.
fn functions<'a>(text: &'a str, name: &str) -> Vec<Vec<&'a str>> {
    let mut plain = name.to_owned();
    while let (Some(from), Some(to)) = (plain.find('<'), plain.find('>')) {
        plain.replace_range(from..=to, "");
    }
    let (of, name) = plain.rsplit_once("::").unwrap_or(("", &plain));
    let of = of.rsplit("::").next().filter(|of| of.starts_with(char::is_uppercase));
    let words =
        |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect::<Vec<_>>();
    let (mut block, mut found) = (Vec::new(), Vec::new());
    for (i, line) in text.lines().enumerate() {
        if line.starts_with(char::is_alphabetic) {
            block = words(line);
        }
        let is_it = words(line).windows(2).any(|pair| pair == ["fn", name]);
        if is_it && of.is_none_or(|of| block[0] == "impl" && block.iter().any(|word| word == of)) {
            let end = format!("{}}}", " ".repeat(line.len() - line.trim_start().len()));
            let lines = text.lines().skip(i).map(|line| line.split("//").next().unwrap_or_default());
            found.push(lines.take_while(|line| *line != end).collect());
        }
    }
    found
}

/// Why a line of `.ci/mutants-argued.txt` argues no mutant of the code. `read`: the text of a file,
/// if there is one.
fn argues_nothing(line: &str, read: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let Some((place, mutant)) = line.split_once(" -- ").and_then(|(mutant, _)| mutant.split_once(": ")) else {
        return Some("it is not written as `FILE: MUTANT -- REASON`");
    };
    let (file, column) = place.split_once(':').unwrap_or((place, ""));
    let Some(text) = read(file) else { return Some("there is no such file") };
    let (how, what) = mutant.split_once(' ').unwrap_or((mutant, ""));
    let what = what.split(if how == "delete" { " in " } else { " with " }).next().unwrap_or(what);
    let function = mutant.rsplit_once(" in ").map_or("", |(_, function)| function);
    if function.is_empty() && what.starts_with(char::is_alphabetic) {
        let name = what.split(" -> ").next().unwrap_or(what);
        return functions(&text, name).is_empty().then_some("there is no such function");
    }
    let bodies = if function.is_empty() { vec![text.lines().collect()] } else { functions(&text, function) };
    let what = what.strip_prefix("match guard ").unwrap_or(what);
    let spaced = if mutant.starts_with("replace") { format!(" {what} ") } else { what.to_owned() };
    let is_there = |line: &&str| match column.parse::<usize>() {
        Ok(column) => line.get(column - 1..).is_some_and(|rest| rest.starts_with(what)),
        Err(_) => line.contains(&spaced),
    };
    (!bodies.concat().iter().any(is_there)).then_some("there is no such code")
}

#[test]
fn mutants_that_are_argued_are_of_code_that_exists() {
    let of = |path: &str| fs::read_to_string(root().join(path)).ok();
    let list = read(".ci/mutants-argued.txt");
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let wrong: Vec<_> = lines.filter_map(|line| argues_nothing(line, of).map(|why| (why, line))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    // The rule finds a file, a type, a function, an operator and a column that are gone.
    let text = "impl<X> One<X> {\n    fn f(&self) {\n        self.a + 1; // a * 1\n    }\n}\n\nfn g() -> bool {\n    true\n}\n";
    let of = |path: &str| (path == "a.rs").then(|| text.to_owned());
    let right = [
        "a.rs: replace + with - in One<X>::f",
        "a.rs:16: replace + with - in One<X>::f",
        "a.rs: replace g -> bool with true",
    ];
    let wrong = [
        "b.rs: replace + with - in One<X>::f",
        "a.rs: replace + with - in Two::f",
        "a.rs: replace + with - in One<X>::g",
        "a.rs: replace * with - in One<X>::f",
        "a.rs:17: replace + with - in One<X>::f",
        "a.rs: replace h -> bool with true",
    ];
    let is_wrong = |line: &&str| argues_nothing(&format!("{line} -- x"), of).is_some();
    assert!(argues_nothing(right[0], of).is_some(), "without a reason");
    assert!(!right.iter().any(is_wrong) && wrong.iter().all(is_wrong));
}

/// One of the ways through the code that DESIGN.md lists: `- **Name**, N in M:
/// `file` `function` `function`, `file` ...`. It may end by `*Other* from `function``: as another
/// way goes on.
struct Way<'a> {
    name: &'a str,
    told: [usize; 2],
    steps: Vec<(&'a str, Vec<&'a str>)>,
}

fn ways(section: &str) -> Vec<Way<'_>> {
    let mut ways = Vec::<Way<'_>>::new();
    for text in section.split("\n- **").skip(1) {
        let text = text.split("\n\n").next().unwrap_or_default();
        let (name, rest) = text.split_once("**, ").expect("a name and its counts");
        let (counts, listed) = rest.split_once(':').expect("counts and steps");
        let mut counts = counts.split_whitespace().filter_map(|word| word.parse().ok());
        let mut steps = Vec::new();
        for step in listed.split(',') {
            let mut names = step.split('`').skip(1).step_by(2);
            let first = names.next().unwrap_or_default();
            match step.trim().strip_prefix('*').and_then(|rest| rest.split_once('*')) {
                None => steps.push((first, names.collect())),
                Some((other, _)) => {
                    let other = ways.iter().find(|way| way.name == other).expect("a way before this one");
                    let all =
                        other.steps.iter().flat_map(|(file, functions)| functions.iter().map(|name| (*file, *name)));
                    steps.extend(all.skip_while(|(_, name)| *name != first).map(|(file, name)| (file, vec![name])));
                }
            }
        }
        ways.push(Way { name, told: [(); 2].map(|()| counts.next().unwrap_or_default()), steps });
    }
    ways
}

/// What is wrong with a way: a function that its file does not have, or a wrong count.
fn wrong_steps(way: &Way<'_>, read: impl Fn(&str) -> String) -> Vec<String> {
    let has = |text: &str, name: &str| ["(", "<"].iter().any(|end| text.contains(&format!("fn {name}{end}")));
    let mut wrong = Vec::new();
    for (file, functions) in &way.steps {
        let text = read(file);
        let gone = functions.iter().filter(|name| !has(&text, name));
        wrong.extend(gone.map(|name| format!("{}: {file} has no `{name}`", way.name)));
    }
    let files: BTreeSet<&str> = way.steps.iter().map(|(file, _)| *file).collect();
    let counted = [way.steps.iter().map(|(_, functions)| functions.len()).sum(), files.len()];
    if counted != way.told {
        wrong.push(format!("{}: counted {counted:?}", way.name));
    }
    wrong
}

#[test]
fn the_ways_of_a_timer_are_those_of_the_code() {
    let design = read("DESIGN.md");
    let section = design.split("\n## ").find(|section| section.starts_with("3. ")).expect("section 3");
    let ways = ways(section);
    assert_eq!(ways.len(), 6);
    let wrong: Vec<String> = ways.iter().flat_map(|way| wrong_steps(way, read)).collect();
    assert_eq!(wrong, [""; 0]);
    // The rule finds a function that has gone, and wrong counts.
    let text = "x\n- **One**, 2 in 1: `a.rs` `f` `g`\n- **Two**, 2 in 2:\n  `b.rs` `f`, *One* from `g`\n\
                - **Three**, 1 in 2: `a.rs` `f`\n\nand, so on";
    let wrong: Vec<String> =
        self::ways(text).iter().flat_map(|way| wrong_steps(way, |_| String::from("fn f("))).collect();
    assert_eq!(wrong, ["One: a.rs has no `g`", "Two: a.rs has no `g`", "Three: counted [1, 1]"]);
}

/// The anchor that a heading has in a rendered document.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The links of a document to files and headings that there are not. `read`: the text of a file,
/// or of a folder nothing.
fn broken_links(path: &str, text: &str, read: impl Fn(&Path) -> Option<String>) -> Vec<String> {
    let outside_code = text.split("```").step_by(2).collect::<String>();
    let targets = outside_code.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let is_broken = |target: &&str| {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = if file.is_empty() { PathBuf::from(path) } else { folder.join(file) };
        let Some(text) = read(&file) else { return true };
        !heading.is_empty() && !text.lines().any(|line| line.starts_with('#') && anchor(line) == heading)
    };
    let local = targets.filter(|target| !target.contains("://") && !target.contains([' ', '\n']));
    local.filter(is_broken).map(|target| format!("{path}: {target}")).collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    let read = |path: &Path| {
        let path = root().join(path);
        path.exists().then(|| fs::read_to_string(path).unwrap_or_default())
    };
    let mut documents = files("docs", ".md");
    documents.extend(files("crates", ".md"));
    for path in ["README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"] {
        documents.insert(path.to_owned(), self::read(path));
    }
    let broken: Vec<String> = documents.iter().flat_map(|(path, text)| broken_links(path, text, read)).collect();
    assert_eq!(broken, [""; 0]);
    let there = |path: &Path| (path == Path::new("docs/a.md")).then(|| String::from("## One: `two`, 3\n"));
    let text = "[a](a.md) [b](b.md) [c](a.md#one-two-3) [d](#one)\n```\n[e](e.md)\n```\n[f](https://f.md)";
    assert_eq!(broken_links("docs/a.md", text, there), ["docs/a.md: b.md", "docs/a.md: #one"]);
}

/// The numbers after a letter at the beginning of lines such as `**S32**` and `**I7**`.
fn numbers(text: &str, before: &str) -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    for rest in text.lines().filter_map(|line| line.strip_prefix(before)) {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if let Ok(number) = digits.parse() {
            assert!(numbers.insert(number), "{before}{number} is given twice");
        }
    }
    numbers
}

/// The numbers that a text cites: the letter, and a number that does not go on.
fn cited(text: &str, letter: char) -> BTreeSet<u32> {
    let bytes = text.as_bytes();
    text.match_indices(letter)
        .filter(|&(at, _)| at == 0 || !bytes[at - 1].is_ascii_alphanumeric())
        .filter_map(|(at, _)| {
            let digits: String = text[at + 1..].chars().take_while(char::is_ascii_digit).collect();
            let after = text[at + 1 + digits.len()..].chars().next();
            if after.is_some_and(|c| c.is_ascii_alphanumeric()) { None } else { digits.parse().ok() }
        })
        .collect()
}

#[test]
fn invariants_are_cited_where_they_are_defended() {
    let invariants = numbers(&read("DESIGN.md"), "**I");
    assert!(invariants.len() >= 16, "{invariants:?}");
    let (mut code, mut checked) = (BTreeSet::new(), BTreeSet::new());
    for folder in ["src", "loom-tests", "tests"] {
        for (path, text) in files(folder, ".rs").iter().filter(|(path, _)| !path.ends_with("tidy.rs")) {
            let checks = folder != "src" || is_test_file(path);
            if checks { &mut checked } else { &mut code }.extend(cited(text, 'I'));
        }
    }
    for invariant in &invariants {
        assert!(code.contains(invariant), "I{invariant} is cited nowhere in src");
        assert!(checked.contains(invariant), "I{invariant} is cited by no model and no test");
    }
    let all = &code | &checked;
    assert!(all.is_subset(&invariants), "numbers that DESIGN.md does not have: {:?}", &all - &invariants);
    assert_eq!(cited("(I7) and I16, not I3a or XI4", 'I'), BTreeSet::from([7, 16]));
}

#[test]
fn promises_that_are_cited_exist() {
    let promises = numbers(&read("DESIGN.md"), "**S");
    assert!(promises.len() >= 50, "{promises:?}");
    for folder in ["src", "tests", "loom-tests"] {
        for (path, text) in files(folder, ".rs").iter().filter(|(path, _)| !path.ends_with("tidy.rs")) {
            let unknown = &cited(text, 'S') - &promises;
            assert!(unknown.is_empty(), "{path} cites S{unknown:?}");
        }
    }
}

/// The public items of a file whose documentation cites a promise by number.
fn citing_items(text: &str) -> Vec<&str> {
    let (mut cites, mut found) = (false, Vec::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with("///") {
            cites |= !cited(line, 'S').is_empty();
        } else if !line.starts_with("#[") {
            if cites && (line.starts_with("pub ") || line.starts_with(|c: char| c.is_ascii_uppercase())) {
                found.push(line);
            }
            cites = false;
        }
    }
    found
}

/// Readers of the documentation have no list of promises beside them; the front page has a link.
#[test]
fn documentation_of_public_items_cites_no_numbers() {
    for (path, text) in files("src", ".rs") {
        assert_eq!(citing_items(&text), [""; 0], "{path}");
    }
    let text = "/// One (S1).\n#[inline]\npub fn a() {}\n/// S2\npub(crate) fn b() {}\n/// Two.\npub fn c() {}";
    assert_eq!(citing_items(text), ["pub fn a() {}"]);
}

#[test]
fn the_readme_is_short() {
    let readme = read("README.md");
    let (lines, words) = (readme.lines().count(), readme.split_whitespace().count());
    assert!(lines <= 150 && words <= 1_150, "{lines} lines, {words} words");
}

/// The index of the examples has each of them, and only files that exist.
#[test]
fn each_example_is_in_the_index() {
    let index = read("examples/README.md");
    for (path, text) in files("examples", ".rs") {
        let name = path.trim_start_matches("examples/");
        let is_program = text.lines().any(|line| line.contains("fn main()"));
        assert!(!is_program || index.contains(&format!("]({name})")), "{path} is not in examples/README.md");
    }
}

/// Words that hide which thread, lock or piece of code is meant.
const HIDING: &[&str] = &["who", "whoever", "whom", "whose turn", "somebody", "nobody", "everybody", "himself"];

/// The comments of a text that contain one of these words.
fn hiding(text: &str) -> Vec<&str> {
    let says = |comment: &str, word: &str| {
        let comment = format!(" {} ", comment.replace(|c: char| !c.is_ascii_alphabetic(), " ").to_lowercase());
        comment.contains(&format!(" {word} "))
    };
    text.lines()
        .filter(|line| line.find("//").is_some_and(|at| HIDING.iter().any(|word| says(&line[at..], word))))
        .collect()
}

#[test]
fn comments_name_the_thread_that_they_mean() {
    for (path, text) in files("src", ".rs") {
        assert_eq!(hiding(&text), [""; 0], "{path}");
    }
    assert_eq!(hiding("x(); // whoever comes first\ny(); // the thread that comes first").len(), 1);
}
