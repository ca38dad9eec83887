//! Reads a request's body within limits of size and time.

use std::time::Duration;

use axum::body::Body;
use futures_util::StreamExt;

use super::error::ApiError;

/// Bytes of the largest accepted body.
pub const LARGEST_BODY: usize = 32 << 20;

/// Bytes up to which a body that is too large is read and dropped. Otherwise a client that sends
/// its whole body before it reads would not see the refusal.
pub const LARGEST_DRAINED_BODY: usize = 64 << 20;

/// Reads a whole body, which must arrive within `timeout`.
pub async fn read_body(body: Body, timeout: Duration) -> Result<Vec<u8>, ApiError> {
    let collect = async {
        let (mut bytes, mut total, mut pieces) = (Vec::new(), 0, body.into_data_stream());
        while let Some(piece) = pieces.next().await {
            match piece {
                Ok(piece) => {
                    total += piece.len();
                    if total <= LARGEST_BODY {
                        bytes.extend_from_slice(&piece);
                    }
                }
                Err(_) if total > LARGEST_BODY => break,
                Err(error) => {
                    return Err(ApiError::bad_request(format!("the request's body could not be read: {error}")));
                }
            }
        }
        if total > LARGEST_BODY { Err(ApiError::too_large(LARGEST_BODY)) } else { Ok(bytes) }
    };
    tokio::time::timeout(timeout, collect).await.unwrap_or_else(|_| Err(ApiError::too_slow(timeout)))
}
