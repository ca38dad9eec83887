//! `thermocline serve`: the model for other programs.

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
    interrupt::Watch,
    model_options::ModelOptions,
};
use crate::{
    library::ModelId,
    server::{News, Offer, Options, Server},
};

const EXAMPLES: &str = "\
Examples:
  thermocline serve
  thermocline serve model.gguf --device gpu --vram 6GiB -c 8k
  thermocline serve model.gguf --host 0.0.0.0 --api-key SECRET
  curl http://127.0.0.1:8080/v1/chat/completions \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

Clients of OpenAI's API take http://127.0.0.1:8080/v1 as their base URL. What a request does not
say is as the options here have it. Ctrl-C lets the answer that is being made end; a second one
does not.";

/// How long Ctrl-C may go unnoticed.
const POLL: Duration = Duration::from_millis(50);

/// Lets other programs use the model, by OpenAI's protocol over HTTP.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// The model, as --model takes it
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    file: Option<PathBuf>,
    /// Address to listen at: this computer alone, or 0.0.0.0 for every computer that can reach it
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen at; 0 is any that is free
    #[arg(short, long, value_name = "N", default_value_t = Options::PORT)]
    port: u16,
    /// Key that clients have to present [default: none is asked for]
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Option<String>,
    /// Let web pages of this origin ask, like http://localhost:3000, or `*` for all; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Another name that clients call this computer by, beside localhost, its own and its addresses; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Requests that may wait for their turn; more get status 429
    #[arg(long, value_name = "N", default_value_t = Options::WAITING)]
    queue: usize,
    /// No figures on standard error
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
    let offer = Offer { name, since, engine: engine.clone(), defaults };

    let open = options.key.is_none() && options.addresses.iter().any(|it| !it.ip().is_loopback());
    let (quiet, named) = (args.quiet, offer.name.clone());
    let source = Arc::new(move || match offer.engine.stopped() {
        Some(why) => Err(format!("the engine has stopped: {why}")),
        None => Ok(offer.clone()),
    });
    let watch = Watch::start();
    let server = Server::start(options, source, move |news| tell(quiet, &news)).map_err(Failure::usage)?;
    answer::print(&format!("{} at {}\n", one_line(&named), server.url()))?;
    if open {
        eprintln!("[every computer that can reach this one may ask; --api-key KEY has them present a key]");
    }
    wait(&server, &engine, &watch, quiet)
}

/// Until Ctrl-C, and until what is being answered then is.
fn wait(server: &Server, engine: &Engine, watch: &Watch, quiet: bool) -> Outcome {
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
        eprintln!("[ends after the answer that is being made; Ctrl-C ends it now]");
    }
    server.finish();
    while !server.is_finished() {
        thread::sleep(POLL);
    }
    Ok(())
}

fn tell(quiet: bool, news: &News<'_>) {
    match news {
        News::Device(event) => eprintln!("{}", answer::device_line(event)),
        News::Answered(stats, reason) if !quiet => eprintln!("{}", answer::stats_line(stats, reason)),
        News::Refused(line) if !quiet => eprintln!("[{}]", one_line(line)),
        News::Request | News::Answered(..) | News::Refused(_) => {}
    }
}

impl ServeArgs {
    fn options(&self) -> Outcome<Options> {
        let found = (self.host.trim_matches(['[', ']']), self.port).to_socket_addrs();
        let unknown = |error| Failure::usage(format!("--host {}: no such address: {error}", self.host));
        let addresses: Vec<_> = found.map_err(unknown)?.collect();
        let Some(&first) = addresses.first() else {
            return Err(Failure::usage(format!("--host {}: no such address", self.host)));
        };
        let mut options = Options::at(first);
        options.hosts.extend(self.allow_host.iter().chain([&self.host]).cloned());
        Ok(Options {
            addresses,
            key: self.api_key.clone(),
            origins: self.allow_origin.clone(),
            waiting: self.queue,
            ..options
        })
    }
}
