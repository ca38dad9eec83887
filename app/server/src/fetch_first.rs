//! Fetches the pictures of a request before it takes its model.

use std::sync::Arc;

use super::{context::ServerContext, error::ApiError, named_model::NamedModel, request_message::ReadRules};

/// Fetches the pictures whose addresses `body` names, which `read` finds on another thread. Returns
/// the body, and rules for a second reading that has these pictures and fetches none. The request
/// has no right to the model `named` meanwhile, so other requests can use and change models.
///
/// # Errors
/// 503 if other requests fetch for too long or too many wait for a model, and the errors of `read`.
pub async fn fetch_first(
    body: Vec<u8>,
    named: &NamedModel,
    context: &Arc<ServerContext>,
    read: impl FnOnce(&[u8], &ReadRules) -> Result<(), ApiError> + Send + 'static,
) -> Result<(Vec<u8>, ReadRules), ApiError> {
    let mut rules = context.rules();
    let mut body = body;
    if rules.fetch.may_fetch(&body) && named.may_see(context).await? {
        context.library().map_or(Ok(()), |library| library.check_room())?;
        let permit = rules.fetch.permit().await?;
        let first = rules.clone();
        let fetch = move || {
            let _permit = permit;
            read(&body, &first).map(|()| body)
        };
        let fetched = tokio::task::spawn_blocking(fetch).await;
        body = fetched.unwrap_or_else(|_| Err(ApiError::unavailable("the pictures could not be fetched")))?;
    }
    rules.fetch.ended = true;
    Ok((body, rules))
}
