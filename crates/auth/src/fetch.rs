//! The port for the documents and answers of other servers: keys, metadata, tokens.

use async_trait::async_trait;
use http::{Request, Response};

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotFetched(pub String);

/// Sends requests to other servers. An adapter follows no redirects, has a deadline for the whole exchange, and reads no
/// more than `most` bytes. One for URLs that others than the operator have named connects to public addresses alone.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// The answer to a request, whatever its status.
    ///
    /// # Errors
    ///
    /// If there is none in time, or it is larger than `most` bytes.
    async fn fetch(&self, request: Request<Vec<u8>>, most: usize) -> Result<Response<Vec<u8>>, NotFetched>;
}

/// A JSON document at `url`, and for how long its server says that it may be kept.
///
/// # Errors
///
/// If it can't be had or is no JSON.
pub async fn document(
    fetch: &dyn Fetch,
    url: &str,
    most: usize,
) -> Result<(serde_json::Value, Option<std::time::Duration>), NotFetched> {
    let response = get(fetch, url, most).await?;
    if response.status() != http::StatusCode::OK {
        return Err(NotFetched(format!("{url} answered with {}", response.status())));
    }
    read(url, &response)
}

/// The same where there may be none: `None` if what is there is no JSON, or the server says by a status of its client's
/// fault that there is nothing.
///
/// # Errors
///
/// If it can't be told now.
pub async fn find_document(
    fetch: &dyn Fetch,
    url: &str,
    most: usize,
) -> Result<Option<(serde_json::Value, Option<std::time::Duration>)>, NotFetched> {
    let response = get(fetch, url, most).await?;
    let status = response.status();
    if status.is_server_error() || status == http::StatusCode::TOO_MANY_REQUESTS {
        return Err(NotFetched(format!("{url} answered with {status}")));
    }
    Ok(if status == http::StatusCode::OK { read(url, &response).ok() } else { None })
}

async fn get(fetch: &dyn Fetch, url: &str, most: usize) -> Result<Response<Vec<u8>>, NotFetched> {
    let request = Request::get(url).header("accept", "application/json").body(Vec::new());
    fetch.fetch(request.map_err(|error| NotFetched(error.to_string()))?, most).await
}

fn read(
    url: &str,
    response: &Response<Vec<u8>>,
) -> Result<(serde_json::Value, Option<std::time::Duration>), NotFetched> {
    let media =
        response.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence != "application/json" && !essence.ends_with("+json") {
        return Err(NotFetched(format!("{url} is no JSON, but {essence}")));
    }
    let age = response.headers().get("cache-control").and_then(|value| value.to_str().ok()).and_then(max_age);
    let value =
        serde_json::from_slice(response.body()).map_err(|_| NotFetched(format!("{url} is no JSON")))?;
    Ok((value, age))
}

fn max_age(cache_control: &str) -> Option<std::time::Duration> {
    let directives = cache_control.split(',').map(str::trim);
    let mut ages = directives.filter_map(|directive| match directive {
        "no-store" | "no-cache" => Some(0),
        other => other.strip_prefix("max-age=")?.parse().ok(),
    });
    ages.next().map(std::time::Duration::from_secs)
}
