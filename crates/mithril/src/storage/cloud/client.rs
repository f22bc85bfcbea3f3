//! A client of an object store, and the prefix that keys stand under.

use super::super::redact::without_secrets_of_urls;
use super::super::{StorageError, StorageErrorKind, StorageOptions};
use super::runtime;
use super::secrets::Secrets;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where clients ask for credentials when they have none: hosts of the provider's own machines.
const METADATA_HOSTS: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

/// An object store.
pub(super) type Store = Arc<dyn ObjectStore>;

/// An object store that takes objects in parts.
pub(super) type PartStore = Arc<dyn MultipartStore>;

/// The same client, as both.
#[derive(Clone)]
struct Connection {
    store: Store,
    /// None where nothing is written.
    parts: Option<PartStore>,
}

/// Makes clients of one object store, one per process: connections do not survive a fork.
#[derive(Clone)]
pub(super) struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    /// With its secrets: a client that is made after a fork needs them.
    url: String,
    location: String,
    secrets: Secrets,
    prefix: Path,
    options: StorageOptions,
    current: Mutex<Option<(u32, Connection)>>,
    /// Records of uploads that this process has at work: not for anybody to clean up.
    live_uploads: Mutex<BTreeSet<String>>,
}

impl Client {
    pub(super) fn new(url: &str, options: &StorageOptions) -> Result<Self, StorageError> {
        let secrets = Secrets::of(url, options);
        let invalid = |reason: String| {
            let reason = secrets.hide(&reason);
            StorageError::new(StorageErrorKind::InvalidArgument, "open", "", location_of(url), reason)
        };
        // A second provider of TLS cannot be installed, and need not be.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let prefix = match is_web(url) {
            // The client of web servers takes its prefix from the URL.
            true => "",
            false => {
                url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path)
            }
        };
        let prefix = Path::parse(prefix.trim_matches('/')).map_err(|error| invalid(error.to_string()))?;
        let connection = build(url, options).map_err(|error| invalid(error.to_string()))?;
        let shared = Shared {
            url: url.to_owned(),
            location: location_of(url),
            prefix,
            options: options.clone(),
            current: Mutex::new(Some((std::process::id(), connection))),
            live_uploads: Mutex::default(),
            secrets,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(super) fn location(&self) -> &str {
        &self.shared.location
    }

    /// Where the object of a key is. Parsed, not built from parts: that would spell `~` as `%7E`.
    pub(super) fn path(&self, key: &str) -> Path {
        let prefix = self.shared.prefix.as_ref();
        let path = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}/{key}") };
        Path::parse(path).expect("a prefix that was parsed, and a key that was checked")
    }

    /// What all keys stand under.
    pub(super) fn root(&self) -> Path {
        self.shared.prefix.clone()
    }

    /// The key of an object, if it lies under the prefix.
    pub(super) fn key(&self, path: &Path) -> Option<String> {
        let parts = path.prefix_match(&self.shared.prefix)?;
        let names: Vec<_> = parts.map(|part| part.as_ref().to_owned()).collect();
        Some(names.join("/"))
    }

    fn connection(&self) -> Result<Connection, object_store::Error> {
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if let Some((_, connection)) = current.as_ref().filter(|(owner, _)| *owner == process) {
            return Ok(connection.clone());
        }
        let connection = build(&self.shared.url, &self.shared.options)?;
        if let Some(parents) = current.replace((process, connection.clone())) {
            std::mem::forget(parents);
        }
        Ok(connection)
    }

    /// Records of uploads that this process has at work.
    pub(super) fn live_uploads(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.shared.live_uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the store, and waits for it.
    pub(super) fn run<T, F>(
        &self,
        operation: &'static str,
        key: &str,
        work: impl FnOnce(Store) -> F,
    ) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, object_store::Error>> + Send + 'static,
    {
        let connection = self.connection().map_err(|error| self.failed(operation, key, error))?;
        self.wait(operation, key, &runtime::start(work(connection.store)))
    }

    /// The store as one that takes objects in parts.
    pub(super) fn parts(&self, operation: &'static str, key: &str) -> Result<PartStore, StorageError> {
        let connection = self.connection().map_err(|error| self.failed(operation, key, error))?;
        let read_only = || {
            let reason = "nothing can be written there";
            StorageError::new(StorageErrorKind::Unsupported, operation, key, self.location(), reason)
        };
        connection.parts.ok_or_else(read_only)
    }

    /// Waits for what was started.
    pub(super) fn wait<T>(
        &self,
        operation: &'static str,
        key: &str,
        started: &Receiver<Result<T, object_store::Error>>,
    ) -> Result<T, StorageError> {
        let result = started.recv().map_err(|_| self.stopped(operation, key))?;
        result.map_err(|error| self.failed(operation, key, error))
    }

    /// What the store said, as our error.
    fn failed(&self, operation: &'static str, key: &str, error: object_store::Error) -> StorageError {
        use object_store::Error as Reason;
        let kind = match &error {
            Reason::NotFound { .. } => StorageErrorKind::NotFound,
            Reason::AlreadyExists { .. } | Reason::Precondition { .. } => StorageErrorKind::AlreadyExists,
            Reason::PermissionDenied { .. } | Reason::Unauthenticated { .. } => {
                StorageErrorKind::PermissionDenied
            }
            Reason::NotSupported { .. } | Reason::NotImplemented { .. } => StorageErrorKind::Unsupported,
            _ => StorageErrorKind::Failed,
        };
        // The message of the client names its causes already, and its URLs.
        let mut reason = self.shared.secrets.hide(&error.to_string());
        if METADATA_HOSTS.iter().any(|host| reason.contains(host)) {
            reason =
                format!("there are no credentials in the environment ({}): {reason}", self.credentials());
        }
        StorageError::new(kind, operation, key, self.location(), reason)
    }

    /// The variables of the environment that hold credentials.
    fn credentials(&self) -> &'static str {
        match self.shared.url.split("://").next() {
            Some("s3" | "s3a") => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            Some("gs") => "GOOGLE_APPLICATION_CREDENTIALS",
            _ => "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        }
    }

    /// The work ended without a result.
    fn stopped(&self, operation: &'static str, key: &str) -> StorageError {
        let reason = "the client stopped";
        StorageError::new(StorageErrorKind::Failed, operation, key, self.location(), reason)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.shared.location).finish_non_exhaustive()
    }
}

/// A URL without what may be secret: user, password and query.
fn location_of(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    without_secrets_of_urls(url).trim_end_matches('/').to_owned()
}

/// Connects to web servers. A redirect to another host is followed, as those of model hubs lead to their storage, but that
/// host is not told the URL that led there.
#[derive(Debug)]
struct WebConnector {
    options: StorageOptions,
}

impl HttpConnector for WebConnector {
    fn connect(&self, _: &ClientOptions) -> Result<HttpClient, object_store::Error> {
        let client = reqwest::Client::builder().timeout(self.options.request_timeout).referer(false);
        let failed =
            |source: reqwest::Error| object_store::Error::Generic { store: "HTTP", source: source.into() };
        Ok(HttpClient::new(client.build().map_err(failed)?))
    }
}

fn is_web(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

fn build(url: &str, options: &StorageOptions) -> Result<Connection, object_store::Error> {
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: options.max_retries,
        retry_timeout: options.retry_timeout,
    };
    let timeout = format!("{} ms", options.request_timeout.as_millis());
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    // Settings are spelled as the client spells them; one that it does not know is refused.
    macro_rules! configured {
        ($builder:expr) => {{
            // One by one: options of the client as a whole would take the place of those from the environment.
            let mut builder = $builder.with_retry(retry).with_url(url);
            builder = builder.with_config("timeout".parse()?, timeout);
            for (name, value) in &options.client {
                builder = builder.with_config(name.parse()?, value);
            }
            builder
        }};
    }
    Ok(match scheme {
        "s3" | "s3a" => writable(configured!(AmazonS3Builder::from_env()).build()?),
        "gs" => writable(configured!(GoogleCloudStorageBuilder::from_env()).build()?),
        "http" | "https" => {
            let client =
                ClientOptions::new().with_timeout(options.request_timeout).with_allow_http(scheme == "http");
            let built = HttpBuilder::new().with_url(url).with_client_options(client).with_retry(retry);
            let built = built.with_http_connector(WebConnector { options: options.clone() }).build()?;
            Connection { store: Arc::new(built), parts: None }
        }
        _ => writable(configured!(MicrosoftAzureBuilder::from_env()).build()?),
    })
}

fn writable(store: impl ObjectStore + MultipartStore) -> Connection {
    let store = Arc::new(store);
    Connection { parts: Some(store.clone()), store }
}
