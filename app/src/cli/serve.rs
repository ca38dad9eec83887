//! `thermocline serve`: an HTTP server for other programs.

use std::{
    net::ToSocketAddrs,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Args;
use thermocline_engine::{
    Error,
    session::{Engine, Prompt},
};

use super::{
    answer,
    answer_options::AnswerOptions,
    failure::{Failure, Outcome, one_line},
    interrupt::InterruptWatch,
    model_options::ModelOptions,
};
use crate::{
    library::ModelId,
    server::{ServedModel, Server, ServerEvent, ServerOptions},
};

const EXAMPLES: &str = "\
Examples:
  thermocline serve
  thermocline serve model.gguf --device gpu --vram 6GiB -c 8k
  thermocline serve model.gguf --host 0.0.0.0 --api-key SECRET
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

The base URL for clients of OpenAI's API is http://127.0.0.1:8080/v1. Fields that a request leaves
out have the values of the options here. Ctrl-C ends the server after the current answer; a second
one ends it at once.";

/// Interval at which Ctrl-C is checked.
const POLL: Duration = Duration::from_millis(50);

/// Serves the model to other programs by OpenAI's HTTP API.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// The model, as --model takes it
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    file: Option<PathBuf>,
    /// Address to listen at: the default accepts this computer only, 0.0.0.0 every computer that can reach it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen at; 0 is any free one
    #[arg(short, long, value_name = "N", default_value_t = ServerOptions::PORT)]
    port: u16,
    /// Key that clients must present [default: none]
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Option<String>,
    /// Accept requests of web pages of this origin, like http://localhost:3000, or `*` for all; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Accept another host name for this computer, beside localhost, its own name and its addresses; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Requests that may wait; more are refused with status 429
    #[arg(long, value_name = "N", default_value_t = ServerOptions::MAX_WAITING)]
    queue: usize,
    /// No statistics on standard error
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    how: AnswerOptions,
}

/// Runs the command.
pub fn serve(args: &ServeArgs) -> Outcome {
    let options = args.options()?;
    let given = &args.how.model;
    let model = ModelOptions { model: args.file.clone().or(given.model.clone()), ..given.clone() };
    let how = AnswerOptions { model, ..args.how.clone() };
    let engine = how.open()?;
    let defaults = how.request(Prompt::Tokens(Vec::new()));
    defaults.sampling.validate(engine.config().n_vocab)?;
    let name = how.model.model.map_or(ModelId::Builtin, ModelId::Path).to_string();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let model = ServedModel { name, since, engine: engine.clone(), defaults };

    let open = options.key.is_none() && options.addresses.iter().any(|it| !it.ip().is_loopback());
    let (quiet, named) = (args.quiet, model.name.clone());
    let source = Arc::new(move || match model.engine.stopped() {
        Some(why) => Err(format!("the engine has stopped: {why}")),
        None => Ok(model.clone()),
    });
    let watch = InterruptWatch::start();
    let server = Server::start(options, source, move |event| print_event(quiet, &event)).map_err(Failure::usage)?;
    answer::print(&format!("{} at {}\n", one_line(&named), server.url()))?;
    if open {
        eprintln!("[every computer that can reach this one may send requests; --api-key KEY requires a key]");
    }
    wait(&server, &engine, &watch, quiet)
}

/// Waits for Ctrl-C, and then for the end of the current answer.
fn wait(server: &Server, engine: &Engine, watch: &InterruptWatch, quiet: bool) -> Outcome {
    while !watch.pressed() {
        if let Some(why) = engine.stopped() {
            return Err(Failure::Engine(Error::Stopped(why.to_owned())));
        }
        if server.is_finished() {
            return Err(Failure::Engine(Error::Stopped("the server has ended".to_owned())));
        }
        thread::sleep(POLL);
    }
    if server.status().answering && !quiet {
        eprintln!("[ends after the current answer; Ctrl-C ends it now]");
    }
    server.shut_down();
    while !server.is_finished() {
        thread::sleep(POLL);
    }
    Ok(())
}

fn print_event(quiet: bool, event: &ServerEvent<'_>) {
    match event {
        ServerEvent::Device(change) => eprintln!("{}", answer::device_line(change)),
        ServerEvent::Answered(stats, reason) if !quiet => eprintln!("{}", answer::stats_line(stats, reason)),
        ServerEvent::Refused(line) if !quiet => eprintln!("[{}]", one_line(line)),
        ServerEvent::Request | ServerEvent::Answered(..) | ServerEvent::Refused(_) => {}
    }
}

impl ServeArgs {
    fn options(&self) -> Outcome<ServerOptions> {
        let found = (self.host.trim_matches(['[', ']']), self.port).to_socket_addrs();
        let unknown = |error| Failure::usage(format!("--host {}: no such address: {error}", self.host));
        let addresses: Vec<_> = found.map_err(unknown)?.collect();
        let Some(&first) = addresses.first() else {
            return Err(Failure::usage(format!("--host {}: no such address", self.host)));
        };
        let mut options = ServerOptions::at(first);
        options.hosts.extend(self.allow_host.iter().chain([&self.host]).cloned());
        Ok(ServerOptions {
            addresses,
            key: self.api_key.clone(),
            origins: self.allow_origin.clone(),
            max_waiting: self.queue,
            ..options
        })
    }
}
