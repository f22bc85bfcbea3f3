//! The secrets that a client knows, and texts without them.

use super::super::StorageOptions;
use super::super::redact::{HIDDEN, is_azure, without_secrets_of_urls};
use std::env;

/// Shorter values are no secrets, and would be found everywhere.
const MIN_LEN: usize = 4;

/// Names of settings and of variables of the environment that hold secrets have one of these words.
const WORDS: [&str; 5] = ["secret", "token", "password", "sas", "key"];

/// Where clients of object stores look for credentials.
const PREFIXES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

fn names_a_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    WORDS.iter().any(|word| name.contains(word))
}

/// The secrets that a client knows.
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    /// Those of a URL, of settings, and of the environment.
    pub(super) fn of(url: &str, options: &StorageOptions) -> Self {
        let mut found = Vec::new();
        let (scheme, behind) = url.split_once("://").unwrap_or_default();
        let user = behind.rsplit_once('@').filter(|(user, _)| user.contains(':') || !is_azure(scheme));
        if let Some((user, _)) = user {
            found.push(user.to_owned());
            found.extend(user.split(':').map(str::to_owned));
        }
        if let Some((_, query)) = behind.split_once('?') {
            found.push(query.to_owned());
            found.extend(query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1.to_owned())));
        }
        let settings = options.client.iter().filter(|(name, _)| names_a_secret(name));
        found.extend(settings.map(|(_, value)| value.clone()));
        let variables = env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let is_secret = PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && names_a_secret(&name);
            is_secret.then(|| value.into_string().ok())?
        });
        found.extend(variables);
        found.retain(|secret| secret.len() >= MIN_LEN);
        // The longest first: one may be part of another.
        found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self(found)
    }

    /// A text without them.
    pub(super) fn hide(&self, text: &str) -> String {
        let text = without_secrets_of_urls(text);
        self.0.iter().fold(text, |text, secret| text.replace(secret.as_str(), HIDDEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_to_be_a_secret_is_hidden_wherever_it_stands() {
        let options = StorageOptions::default()
            .with_client("aws_secret_access_key", "settings-secret")
            .with_client("region", "north");
        let secrets = Secrets::of("https://user:pass-word@host/a?sig=signature", &options);
        let text = "north: pass-word signature settings-secret http://x:pass-word@host/?sig=signature";
        assert_eq!(secrets.hide(text), "north: ... ... ... http://host/?...");
        let container = Secrets::of("abfss://models@account/a", &StorageOptions::default());
        assert_eq!(container.hide("models"), "models");
        assert!(!format!("{options:?}").contains("settings-secret"), "{options:?}");
    }
}
