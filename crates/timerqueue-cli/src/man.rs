//! `man`: the manual pages, made of the definition of the arguments.

use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit::{Fail, PLACE};
use crate::out::Out;

/// The page of a command: its name, and its text for `man`.
fn page(command: clap::Command) -> Result<(String, Vec<u8>), Fail> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(|error| Fail::new(PLACE, error.to_string()))?;
    Ok((name, page))
}

pub(crate) fn man(command: Option<&str>, all: Option<&Path>, out: &mut Out) -> Result<(), Fail> {
    let mut program = Cli::command().disable_help_subcommand(true);
    // Gives the commands their full names, and the options that all have.
    program.build();
    if let Some(folder) = all {
        let commands: Vec<clap::Command> = program.get_subcommands().cloned().collect();
        for command in std::iter::once(program).chain(commands) {
            let (name, page) = page(command)?;
            let file = folder.join(format!("{name}.1"));
            std::fs::write(&file, page).map_err(|error| Fail::new(PLACE, format!("{}: {error}", file.display())))?;
        }
        return Ok(());
    }
    let command = match command {
        None => program,
        Some(name) => {
            let unknown = || Fail::usage(format!("there is no command {}", crate::text::tame(name)));
            program.find_subcommand(name).cloned().ok_or_else(unknown)?
        }
    };
    out.raw(&page(command)?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each command has a page, with each of its options.
    #[test]
    fn the_manual_has_what_the_definition_has() {
        let mut program = Cli::command().disable_help_subcommand(true);
        program.build();
        let commands: Vec<clap::Command> = program.get_subcommands().cloned().collect();
        assert!(commands.len() > 20);
        for command in std::iter::once(program).chain(commands) {
            let options: Vec<String> = (command.get_arguments())
                .filter(|argument| !argument.is_hide_set())
                .filter_map(|argument| argument.get_long())
                .map(|long| format!("\\-\\-{}", long.replace('-', "\\-")))
                .collect();
            let (name, page) = page(command).map_err(|fail| fail.code()).unwrap();
            let page = String::from_utf8(page).unwrap();
            assert!(name.starts_with("timerqueue"), "{name}");
            for option in options {
                assert!(page.contains(&option), "{name}: {option}\n{page}");
            }
        }
    }
}
