//! Opens a model and prints its answer:
//! `cargo run -p thermocline-engine --example generate MODEL PROMPT`
use std::{env, io::Write, path::Path};

use thermocline_engine::{Engine, EngineOptions, Event, Prompt, Request, Result, SessionOptions};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let [_, model, prompt] = &arguments[..] else { panic!("expected a model and a prompt") };
    let engine = Engine::open(Path::new(model), EngineOptions::default())?;
    let session = engine.session(SessionOptions::default())?;
    let request = Request { max_tokens: Some(100), ..Request::new(Prompt::Text(prompt.clone())) };
    for event in session.generate(request) {
        match event {
            Event::Token { text, .. } => {
                print!("{}", &*text);
                let _ = std::io::stdout().flush();
            }
            Event::Error(error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
