//! Collects the events of a generation.

use thermocline_engine::session::{Event, Request, Session};

/// Returns the token ids of the answer to a request on `session`.
///
/// If the generation ends in an error.
/// # Panics
/// If it ends in an error.
pub fn tokens(session: &Session, request: Request) -> Vec<u32> {
    let events = session.generate(request);
    let ids = events.iter().filter_map(|event| match event {
        Event::Token { id, .. } => Some(id),
        Event::Error(error) => panic!("{error}"),
        _ => None,
    });
    ids.collect()
}
