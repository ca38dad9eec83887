//! `thermocline serve`: an HTTP server for other programs.

use std::{
    env, fs,
    net::ToSocketAddrs,
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
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
    termination::TerminationWatch,
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
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

The base URL for clients of OpenAI's API is http://127.0.0.1:8080/v1. Fields that a request leaves
out have the values of the options here. Ctrl-C or SIGTERM ends the server after the current answer,
or when --drain is over; a second Ctrl-C ends it at once.";

/// Environment variable of the key.
const KEY_VARIABLE: &str = "THERMOCLINE_API_KEY";

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
    /// Key that clients must present [default: THERMOCLINE_API_KEY of the environment, or none]
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Option<String>,
    /// File whose first line is the key
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    api_key_file: Option<PathBuf>,
    /// Accept requests of web pages of this origin, like http://localhost:3000, or `*` for all; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Accept another host name for this computer, beside localhost, its own name and its addresses; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Requests that may wait; more are refused with status 429
    #[arg(long, value_name = "N", default_value_t = ServerOptions::MAX_WAITING)]
    queue: usize,
    /// Refuse what OpenAI's server refuses: other models' names, and fields of other servers
    #[arg(long)]
    strict: bool,
    /// Seconds for which the current answer may go on after the server was told to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
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

    let (quiet, named) = (args.quiet, model.name.clone());
    let source = Arc::new(move || match model.engine.stopped() {
        Some(why) => Err(format!("the engine has stopped: {why}")),
        None => Ok(model.clone()),
    });
    let (watch, termination) = (InterruptWatch::start(), TerminationWatch::start());
    let server = Server::start(options, source, move |event| print_event(quiet, &event)).map_err(Failure::usage)?;
    answer::print(&format!("{} at {}\n", one_line(&named), server.url()))?;
    wait(&server, &engine, &watch, &termination, Duration::from_secs(args.drain), quiet)
}

/// Waits for Ctrl-C or a request to end, and then, no longer than `drain`, for the end of the current answer.
fn wait(
    server: &Server,
    engine: &Engine,
    watch: &InterruptWatch,
    termination: &TerminationWatch,
    drain: Duration,
    quiet: bool,
) -> Outcome {
    while !watch.pressed() && !termination.requested() {
        if let Some(why) = engine.stopped() {
            return Err(Failure::Engine(Error::Stopped(why.to_owned())));
        }
        if server.is_finished() {
            return Err(Failure::Engine(Error::Stopped("the server has ended".to_owned())));
        }
        thread::sleep(POLL);
    }
    if server.status().answering && !quiet {
        eprintln!("[ends after the current answer, within {} s; Ctrl-C ends it now]", drain.as_secs());
    }
    server.shut_down();
    let asked = Instant::now();
    while !server.is_finished() && asked.elapsed() < drain {
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
    /// The key of the command line, of the file, or of the environment.
    fn key(&self) -> Outcome<Option<String>> {
        if let Some(path) = &self.api_key_file {
            let text = fs::read_to_string(path).map_err(|error| Failure::read(path, error))?;
            let key = text.lines().next().unwrap_or_default().trim();
            if key.is_empty() {
                return Err(Failure::usage(format!("--api-key-file {}: its first line is empty", path.display())));
            }
            return Ok(Some(key.to_owned()));
        }
        let environment = || env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        Ok(self.api_key.clone().or_else(environment))
    }

    fn options(&self) -> Outcome<ServerOptions> {
        let found = (self.host.trim_matches(['[', ']']), self.port).to_socket_addrs();
        let unknown = |error| Failure::usage(format!("--host {}: no such address: {error}", self.host));
        let addresses: Vec<_> = found.map_err(unknown)?.collect();
        let Some(&first) = addresses.first() else {
            return Err(Failure::usage(format!("--host {}: no such address", self.host)));
        };
        let key = self.key()?;
        if key.is_none() && addresses.iter().any(|address| !address.ip().is_loopback()) {
            let host = &self.host;
            let message = format!("--host {host} lets other computers ask, and there is no key to keep strangers out");
            let hint = Some("--api-key KEY, --api-key-file FILE, or THERMOCLINE_API_KEY in the environment".to_owned());
            return Err(Failure::Usage { message, hint });
        }
        let mut options = ServerOptions::at(first);
        options.hosts.extend(self.allow_host.iter().chain([&self.host]).cloned());
        Ok(ServerOptions {
            addresses,
            key,
            strict: self.strict,
            origins: self.allow_origin.clone(),
            max_waiting: self.queue,
            ..options
        })
    }
}
