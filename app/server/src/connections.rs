//! The open connections of a server, up to a limit. At the limit an idle connection closes to make
//! room for a new one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Instant,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The open connections.
#[derive(Debug)]
pub struct Connections {
    open: Mutex<Vec<Arc<Connection>>>,
    most: usize,
}

/// One open connection.
#[derive(Debug)]
pub struct Connection {
    /// Number of the connection's requests that are being answered.
    answering: AtomicUsize,
    /// Time since which the connection is idle.
    idle_since: Mutex<Instant>,
    close: Notify,
}

/// A place among the open connections, which dropping it frees.
#[derive(Debug)]
pub struct ConnectionPlace {
    connections: Arc<Connections>,
    /// The connection.
    pub connection: Arc<Connection>,
}

/// A running answer. The server does not close its connection to make room.
#[derive(Debug)]
pub struct AnsweringConnection(Arc<Connection>);

impl Connections {
    /// Creates room for `most` connections.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Connections { open: Mutex::default(), most })
    }

    /// Adds a connection. If there is no room, it closes the connection that has been idle longest.
    /// `None` if all connections have running answers.
    pub fn add(self: &Arc<Self>) -> Option<ConnectionPlace> {
        let mut open = self.open.lock();
        if open.len() >= self.most {
            let idle = open.iter().enumerate().filter(|(_, it)| it.answering.load(SeqCst) == 0);
            let (oldest, _) = idle.min_by_key(|(_, it)| *it.idle_since.lock())?;
            open.swap_remove(oldest).close.notify_one();
        }
        let connection = Arc::new(Connection {
            answering: AtomicUsize::new(0),
            idle_since: Mutex::new(Instant::now()),
            close: Notify::new(),
        });
        open.push(Arc::clone(&connection));
        Some(ConnectionPlace { connections: Arc::clone(self), connection })
    }
}

impl Connection {
    /// Waits until the connection has to close to make room.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    /// Records that the server received a request and is answering it.
    pub fn answer(self: &Arc<Self>) -> AnsweringConnection {
        self.answering.fetch_add(1, SeqCst);
        AnsweringConnection(Arc::clone(self))
    }
}

impl Drop for AnsweringConnection {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Instant::now();
        self.0.answering.fetch_sub(1, SeqCst);
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.connections.open.lock().retain(|it| !Arc::ptr_eq(it, &self.connection));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn connection_that_waits_longest_gives_way_but_none_with_an_answer() {
        let connections = Connections::new(2);
        let first = connections.add().unwrap();
        let answer = first.connection.answer();
        let second = connections.add().unwrap();
        let third = connections.add().unwrap();
        assert!(second.connection.closed().now_or_never().is_some());
        assert!(first.connection.closed().now_or_never().is_none());
        let other = third.connection.answer();
        assert!(connections.add().is_none(), "answers are being made for both");
        drop((answer, other));
        drop(second);
        let fourth = connections.add().unwrap();
        assert!(first.connection.closed().now_or_never().is_some(), "its answer ended first");
        drop(third);
        assert!(connections.add().is_some() && fourth.connection.closed().now_or_never().is_none());
    }
}
