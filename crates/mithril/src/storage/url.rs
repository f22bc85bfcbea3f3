//! Storage backends by URL.

use super::redact::without_secrets_of_urls;
use super::{LocalStorage, MemoryStorage, StorageBackend, StorageError, StorageErrorKind};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How object stores are spoken to.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageOptions {
    /// Settings of the client by name, such as `endpoint`, `region`, `allow_http`, beside those of the environment.
    pub client: BTreeMap<String, String>,
    /// How often a request that failed is tried again.
    pub max_retries: usize,
    /// How long a request may take with all its retries.
    pub retry_timeout: Duration,
    /// How long one attempt may take.
    pub request_timeout: Duration,
}

impl fmt::Debug for StorageOptions {
    /// Without the values of the client's settings, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageOptions")
            .field("client", &self.client.keys())
            .field("max_retries", &self.max_retries)
            .field("retry_timeout", &self.retry_timeout)
            .field("request_timeout", &self.request_timeout)
            .finish()
    }
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            client: BTreeMap::new(),
            max_retries: 8,
            retry_timeout: Duration::from_secs(120),
            request_timeout: Duration::from_secs(60),
        }
    }
}

impl StorageOptions {
    /// Sets one setting of the client.
    #[must_use]
    pub fn with_client(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.client.insert(name.into(), value.into());
        self
    }

    /// Sets how often, and for how long, a request is tried again.
    #[must_use]
    pub fn with_retries(mut self, max_retries: usize, retry_timeout: Duration) -> Self {
        (self.max_retries, self.retry_timeout) = (max_retries, retry_timeout);
        self
    }

    /// Sets how long one attempt may take.
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }
}

/// Opens the storage that a URL names, or the directory of a plain path.
///
/// # Errors
/// `InvalidArgument` when it is no URL that this library knows; `Unsupported` when this build lacks its client.
pub fn open(url: &str) -> Result<Arc<dyn StorageBackend>, StorageError> {
    open_with(url, &StorageOptions::default())
}

/// As [`open`], with options for object stores.
///
/// # Errors
/// As [`open`].
pub fn open_with(url: &str, options: &StorageOptions) -> Result<Arc<dyn StorageBackend>, StorageError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return match url {
            "" => Err(invalid(url, "it is empty")),
            path => Ok(Arc::new(LocalStorage::new(path))),
        };
    };
    match scheme {
        "local" | "file" => match rest.strip_prefix("localhost").unwrap_or(rest) {
            "" => Err(invalid(url, "it names no directory")),
            path => Ok(Arc::new(LocalStorage::new(path))),
        },
        "memory" if rest.is_empty() => Ok(Arc::new(MemoryStorage::new())),
        "memory" => Err(invalid(url, "memory has no names: every `memory://` is its own")),
        "s3" | "s3a" | "gs" | "az" | "azure" | "abfs" | "abfss" | "http" | "https" => remote(url, options),
        _ => Err(invalid(url, "its scheme is none of local, file, memory, s3, gs, az, http and https")),
    }
}

#[cfg(feature = "cloud")]
fn remote(url: &str, options: &StorageOptions) -> Result<Arc<dyn StorageBackend>, StorageError> {
    Ok(Arc::new(super::cloud::CloudStorage::open(url, options)?))
}

#[cfg(not(feature = "cloud"))]
fn remote(url: &str, _options: &StorageOptions) -> Result<Arc<dyn StorageBackend>, StorageError> {
    let reason = "this build has no clients of object stores (feature `cloud`)";
    Err(StorageError::new(StorageErrorKind::Unsupported, "open", "", without_secrets_of_urls(url), reason))
}

fn invalid(url: &str, reason: &'static str) -> StorageError {
    StorageError::new(StorageErrorKind::InvalidArgument, "open", "", without_secrets_of_urls(url), reason)
}
