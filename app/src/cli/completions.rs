//! `thermocline completions` and `thermocline man`: shell completions and manual pages.

use std::{fs, io::Write, path::PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use thermocline_terminal::failure::{Failure, Outcome};

const EXAMPLES: &str = "\
Examples:
  thermocline completions bash > ~/.local/share/bash-completion/completions/thermocline
  thermocline completions fish > ~/.config/fish/completions/thermocline.fish
  thermocline completions zsh > ~/.zfunc/_thermocline
  thermocline completions powershell >> $PROFILE

The Linux packages install the scripts for bash, fish and zsh.";

/// Prints the script with which a shell completes commands and options.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// Shell that runs the script
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Prints the manual page of the program, or writes the pages of all commands to a folder.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for the program and one for each command to this folder
    #[arg(short, long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Runs `completions`.
pub fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "thermocline", &mut script);
    print(&script)
}

/// Runs `man`.
pub fn man(args: &ManArgs) -> Outcome {
    let Some(folder) = &args.out else {
        let (_, page) = page(Cli::command(), "thermocline")?;
        return print(&page);
    };
    fs::create_dir_all(folder).map_err(|error| Failure::write(folder, error))?;
    for (file, page) in pages()? {
        let path = folder.join(file);
        fs::write(&path, page).map_err(|error| Failure::write(&path, error))?;
    }
    Ok(())
}

/// Writes `text` to standard output.
fn print(text: &[u8]) -> Outcome {
    let mut out = std::io::stdout().lock();
    out.write_all(text)?;
    Ok(out.flush()?)
}

/// Returns the file names and texts of all pages: `thermocline.1`, `thermocline-run.1` and so on.
fn pages() -> Outcome<Vec<(String, Vec<u8>)>> {
    let program = Cli::command();
    let mut pages = Vec::new();
    collect(&program, "thermocline", &mut pages)?;
    pages.insert(0, page(program, "thermocline")?);
    Ok(pages)
}

/// Collects the pages of the subcommands of `command`, whose full name is `name`.
fn collect(command: &Command, name: &str, pages: &mut Vec<(String, Vec<u8>)>) -> Outcome {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let name = format!("{name}-{}", sub.get_name());
        collect(sub, &name, pages)?;
        pages.push(page(sub.clone(), &name)?);
    }
    Ok(())
}

fn page(command: Command, name: &str) -> Outcome<(String, Vec<u8>)> {
    let command =
        command.bin_name(name.replace('-', " ")).display_name(name.to_owned()).version(env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text)?;
    Ok((format!("{name}.1"), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_manual_page() {
        let pages = pages().unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names[0], "thermocline.1");
        for name in ["thermocline-run.1", "thermocline-serve.1", "thermocline-eval-perplexity.1"] {
            assert!(names.contains(&name), "{names:?}");
        }
        for (name, page) in &pages {
            let page = String::from_utf8(page.clone()).unwrap();
            assert!(page.contains(".TH ") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
        }
    }

    #[test]
    fn completions_of_every_shell_name_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell, Shell::Elvish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "thermocline", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("perplexity") && script.contains("kv-type"), "{shell}");
        }
    }
}
