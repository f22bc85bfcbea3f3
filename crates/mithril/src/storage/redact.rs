//! Texts without the secrets that URLs may hold: users, passwords and queries.

/// What takes the place of a secret.
pub(super) const HIDDEN: &str = "...";

/// What a URL has behind its host may end at these, where it stands in a sentence.
const ENDS: [char; 8] = [' ', '\n', '\t', '"', '\'', '`', ')', '>'];

/// A text in which no URL has a user, a password, a query or a fragment.
#[must_use]
pub fn without_secrets_of_urls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (front, behind) = rest.split_at(at + "://".len());
        shown.push_str(front);
        let url = &behind[..behind.find(ENDS).unwrap_or(behind.len())];
        rest = &behind[url.len()..];
        let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
        let path = &url[authority.len()..];
        let host = match authority.rsplit_once('@') {
            // Azure spells the container there.
            Some((user, _)) if is_azure(front) && !user.contains(':') => authority,
            Some((_, host)) => host,
            None => authority,
        };
        shown.push_str(host);
        let (path, query) = path.split_at(path.find(['?', '#']).unwrap_or(path.len()));
        shown.push_str(path);
        if !query.is_empty() {
            shown.push_str(&query[..1]);
            shown.push_str(HIDDEN);
        }
    }
    shown.push_str(rest);
    shown
}

/// Whether a text ends with a scheme of Azure.
pub(super) fn is_azure(front: &str) -> bool {
    let scheme = front.trim_end_matches("://");
    let start = scheme.rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
    scheme.get(start..).is_some_and(|scheme| matches!(scheme, "az" | "azure" | "abfs" | "abfss"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_passwords_and_queries_are_not_shown() {
        for (text, shown) in [
            ("http://user:secret@host/a", "http://host/a"),
            ("http://token@host/a/b", "http://host/a/b"),
            ("https://host:90/a?sig=secret&x=1", "https://host:90/a?..."),
            ("https://host#secret", "https://host#..."),
            ("s3://key:secret@bucket/a", "s3://bucket/a"),
            ("abfss://container@account.host/a?sas", "abfss://container@account.host/a?..."),
            ("az://user:secret@container/a", "az://container/a"),
            (
                "error for url (http://u:s@h/a?b) and \"http://t@g\": no",
                "error for url (http://h/a?...) and \"http://g\": no",
            ),
            ("local:///a/b", "local:///a/b"),
            ("no URL: a@b?c", "no URL: a@b?c"),
            ("://", "://"),
        ] {
            assert_eq!(without_secrets_of_urls(text), shown);
        }
    }
}
