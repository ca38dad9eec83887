//! Help pages whose example lines never wrap, so that users can copy them at any terminal width.

use std::io::{IsTerminal, Write};

use clap::{Command, error::ErrorKind};

use crate::failure::Outcome;

/// A space at which lines do not wrap. It is printed as a normal space.
const UNBROKEN: char = '\u{a0}';

/// Keeps the example lines of `command` and its subcommands whole.
pub fn keep_examples_whole(command: Command) -> Command {
    let command = match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(whole_examples(&text)),
        None => command,
    };
    command.mut_subcommands(keep_examples_whole)
}

/// Makes lines that begin with two spaces unbreakable: they are examples.
fn whole_examples(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("  ") {
        Some(example) => format!("  {}", example.replace(' ', &UNBROKEN.to_string())),
        None => line.to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Prints a help page or a version to standard output, or a usage error to standard error.
pub fn print(error: &clap::Error) -> Outcome {
    let help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::DisplayVersion
    );
    if !help {
        // If standard error is closed, nobody can read the error.
        let _ = error.print();
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    let plain = !out.is_terminal() || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let page = error.render();
    let text = if plain { page.to_string() } else { page.ansi().to_string() };
    out.write_all(text.replace(UNBROKEN, " ").as_bytes())?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stay_on_one_line_in_a_narrow_terminal() {
        let example = "thermocline run -m a-rather-long-name.gguf -p \"Why is the sky blue?\" --device gpu --vram 6GiB";
        let sub = Command::new("run").after_help(format!("Examples:\n  {example}\n\n{}", "word ".repeat(40)));
        let mut command = keep_examples_whole(Command::new("thermocline").term_width(40).subcommand(sub));
        let error = command.try_get_matches_from_mut(["thermocline", "run", "--help"]).unwrap_err();
        let page = error.render().to_string().replace(UNBROKEN, " ");
        assert!(page.lines().any(|line| line.trim() == example), "{page}");
        assert!(page.lines().filter(|line| line.starts_with("word")).count() > 3, "other lines are broken: {page}");
    }
}
