//! Events of a generation, gathered.

use thermocline_engine::session::{Event, Request, Session};

/// The ids of the tokens that a request on `session` comes to.
///
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
