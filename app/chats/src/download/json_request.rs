//! Requests for JSON. The errors name the expected and the received content.

use serde::de::DeserializeOwned;

use super::DownloadError;

/// A request for JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JsonRequest<'u> {
    /// Address.
    pub(crate) url: &'u str,
    /// The expected content, in words.
    pub(crate) expected: &'static str,
    /// Largest response that is read, in bytes.
    pub(crate) limit: u64,
    /// Hint for an HTTP status other than 200.
    pub(crate) hint: fn(u16) -> &'static str,
}

impl JsonRequest<'_> {
    /// Sends the request and parses the response.
    ///
    /// # Errors
    /// [`DownloadError`] if the network fails, if the status is not 200, or if the response is not
    /// the expected JSON.
    pub(crate) fn send<T: DeserializeOwned>(&self, agent: &ureq::Agent) -> Result<T, DownloadError> {
        let url = || self.url.to_owned();
        let network = |source| DownloadError::Network { url: url(), source: Box::new(source) };
        let mut response = agent.get(self.url).call().map_err(network)?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(DownloadError::Status { url: url(), status, hint: (self.hint)(status) });
        }
        let json = response.body_mut().with_config().limit(self.limit).read_to_string().map_err(network)?;
        serde_json::from_str(&json).map_err(|error| DownloadError::Answer {
            url: url(),
            expected: self.expected,
            got: error.to_string(),
        })
    }
}
