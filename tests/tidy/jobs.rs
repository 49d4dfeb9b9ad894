//! The layers of the scheduler: no module uses one of a layer above, and no two use each other.
//!
//! A use counts for the module that has the item: the rule follows the names that modules give on
//! (`pub use self::op::Op`). Uses by tests, and by the documentation, do not count.

use std::collections::BTreeMap;

use super::{code, files};

const SRC: &str = "crates/timerqueue-scheduler/src/";

/// The layers, bottom up, below the schedules, which are a crate of their own. Each text is a
/// module with all that is in it and in no other text. A module uses lower layers, and in its own
/// layer itself alone.
const LAYERS: &[&[&str]] = &[
    &["debug", "histogram", "unwind"],
    // Vocabulary: what scheduler and stores say to each other.
    &["store::fault", "store::follow", "store::form", "store::invalid"],
    &["store::error", "store::micros", "store::node", "store::times"],
    &["store::reply", "store::row"],
    &["store::history"],
    &["store::gate", "store::look", "store::minutes", "store::op"],
    &["store::limits"],
    &["store"],
    // What operations mean.
    &["store::rules"],
    // Stores.
    &["store::origin", "store::questions", "store::text"],
    &["store::columns"],
    &["store::sql"],
    &["store::memory", "store::postgres", "store::sqlite"],
    // The engine, which knows no store.
    &["engine::handshake", "engine::pending", "engine::retry", "engine::stats"],
    &["engine"],
    // What users call.
    &["scheduler"],
];

/// Names that the code of the engine does not have: it knows the trait of stores alone.
const STORES: &[&str] = &["rusqlite", "tokio_postgres", "SqliteStore", "PostgresStore", "MemoryStore"];

/// The layer of a module, and the text there that has it: the longest one.
fn place(module: &str) -> Option<(usize, &'static str)> {
    let has = |name: &str| module.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    let all = LAYERS.iter().enumerate().flat_map(|(layer, names)| names.iter().map(move |&name| (layer, name)));
    all.filter(|(_, name)| has(name)).max_by_key(|(_, name)| name.len())
}

/// The parts of a list at its commas, outside of braces.
fn items(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_end = |c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    };
    list.split(is_end).map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// The paths of a path with braces: `a::{b, c::{d, e as f}}`.
fn written_out(path: &str) -> Vec<String> {
    match path.split_once('{') {
        Some((before, rest)) => {
            let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
            items(inner).into_iter().flat_map(written_out).map(|end| format!("{}{end}", before.trim())).collect()
        }
        None => path.split(" as ").take(1).map(|path| path.trim().trim_end_matches("::self").to_owned()).collect(),
    }
}

/// The path that a text begins with, up to the end of its braces.
fn first_path(text: &str) -> &str {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '{' if depth > 0 || text[..i].ends_with("::") => depth += 1,
            '}' if depth > 1 => depth -= 1,
            '}' if depth == 1 => return &text[..=i],
            _ if depth > 0 || c.is_ascii_alphanumeric() || c == '_' || c == ':' => {}
            _ => return &text[..i],
        }
    }
    text
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

struct Module {
    /// Paths in the code that begin with `crate`, `super` or `self`.
    used: Vec<String>,
    /// Names that the module gives on, with their paths.
    given: Vec<(String, String)>,
    /// The code without these two.
    rest: String,
}

fn read(text: &str) -> Module {
    let text = code(text);
    let mut module = Module { used: Vec::new(), given: Vec::new(), rest: String::new() };
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let before = text[..at].chars().next_back().unwrap_or(' ');
        let begins = !before.is_ascii_alphanumeric() && before != '_' && before != ':';
        let line = text[..at].rsplit('\n').next().unwrap_or_default().trim_start();
        let gives = line.starts_with("pub") && line.ends_with("use ");
        let is_rooted = ["crate::", "super::", "self::"].iter().any(|root| text[at..].starts_with(root));
        if !begins || !(is_rooted || gives) {
            module.rest.push(c);
            at += c.len_utf8();
            continue;
        }
        let path = first_path(&text[at..]);
        let paths = written_out(path);
        match gives {
            true => {
                module.given.extend(paths.into_iter().map(|path| (path.rsplit("::").next().unwrap().to_owned(), path)));
            }
            false => module.used.extend(paths),
        }
        at += path.len().max(1);
    }
    module
}

type Modules = BTreeMap<String, Module>;

fn modules<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Modules {
    let name = |path: &str| path.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
    files.into_iter().map(|(path, text)| (name(path), read(text))).collect()
}

/// The module that has the item of a path. None: it is of another crate.
fn module_of(modules: &Modules, from: &str, path: &str) -> Option<String> {
    let (mut at, mut parts) = (from.to_owned(), path.split("::").peekable());
    while let Some(&root) = parts.peek() {
        match root {
            "crate" => at = String::from("lib"),
            "super" => at = at.rsplit_once("::").map_or("lib", |(parent, _)| parent).to_owned(),
            "self" => {}
            _ => break,
        }
        parts.next();
    }
    let rest: Vec<&str> = parts.collect();
    for (i, part) in rest.iter().enumerate() {
        let inner = if at == "lib" { (*part).to_owned() } else { format!("{at}::{part}") };
        if modules.contains_key(&inner) {
            at = inner;
        } else if let Some((_, path)) = modules.get(&at)?.given.iter().find(|(name, path)| name == part && path != part)
        {
            let path = [&[path.as_str()], &rest[i + 1..]].concat().join("::");
            return module_of(modules, &at, &path);
        } else {
            break;
        }
    }
    (at != "lib").then_some(at)
}

/// The uses that break the rule.
fn wrong_uses(modules: &Modules) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, module) in modules.iter().filter(|(name, _)| *name != "lib") {
        let Some((own, text)) = place(name) else {
            wrong.push(format!("{name} is in no layer"));
            continue;
        };
        // What a module gives on it uses where its own code has the name.
        let has = |name: &str| words(&module.rest).any(|word| word == name);
        let given = module.given.iter().filter(|(name, _)| has(name)).map(|(_, path)| path);
        for path in module.used.iter().chain(given) {
            let Some(used) = module_of(modules, name, path) else { continue };
            let is_wrong = place(&used).is_none_or(|(layer, of)| of != text && layer >= own);
            if is_wrong {
                wrong.push(format!("{name} uses {used}: {path}"));
            }
        }
    }
    wrong
}

/// The code of the product: its tests are in `tests/unit`.
fn sources() -> Vec<(String, String)> {
    let all = files(SRC, ".rs");
    all.into_iter().map(|(path, text)| (path[SRC.len()..].to_owned(), text)).collect()
}

#[test]
fn modules_of_the_scheduler_use_lower_layers_alone() {
    let sources = sources();
    let all = modules(sources.iter().map(|(path, text)| (path.as_str(), text.as_str())));
    assert_eq!(wrong_uses(&all), [""; 0]);
    for name in LAYERS.concat() {
        assert!(all.contains_key(name), "there is no module `{name}`");
    }
    // The rule finds a use upward, to the side, by a name that is given on, and of a new module.
    let lib = ("lib.rs", "pub use store::Error;\npub use scheduler::Scheduler;");
    let store = ("store/mod.rs", "pub use self::error::Error;\npub use self::memory::MemoryStore;\nfn f(_: Error) {}");
    let wrong = |path: &str, text: &str| {
        let files =
            [lib, store, ("store/error.rs", ""), ("store/memory/mod.rs", ""), ("scheduler/mod.rs", ""), (path, text)];
        wrong_uses(&modules(files)).len()
    };
    assert_eq!(wrong("store/sqlite/mod.rs", "use crate::{Error, store::Error as _}; // crate::Scheduler"), 0);
    assert_eq!(wrong("store/sqlite/mod.rs", "fn f(_: super::MemoryStore) {}"), 1);
    assert_eq!(wrong("store/rules/keys.rs", "use crate::{\n    Error,\n    Scheduler,\n};"), 1);
    assert_eq!(wrong("store/mod.rs", "pub use self::memory::MemoryStore;\nfn f(_: MemoryStore) {}"), 1);
    assert_eq!(wrong("store/new.rs", ""), 0);
    assert_eq!(wrong("new.rs", ""), 1);
}

fn stores_in(text: &str) -> Vec<&'static str> {
    let code = code(text);
    STORES.iter().copied().filter(|name| words(&code).any(|word| word == *name)).collect()
}

#[test]
fn the_engine_of_the_scheduler_knows_no_store() {
    for (path, text) in sources().iter().filter(|(path, _)| path.starts_with("engine/")) {
        assert_eq!(stores_in(text), [""; 0], "{path}");
    }
    assert_eq!(stores_in("fn f(_: &rusqlite::Transaction<'_>) {} // SqliteStore"), ["rusqlite"]);
}
