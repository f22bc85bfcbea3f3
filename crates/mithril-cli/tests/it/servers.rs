//! Stores behind servers: what is secret is shown to nobody, and servers that keep no promise are refused.

use crate::{Directory, base_and_tuned, check_refused, command, run, text};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A server on this machine. It ends with the test.
struct Server {
    port: u16,
    /// First line and headers of every request.
    requests: Arc<Mutex<Vec<String>>>,
}

/// Answers every request by its first line; an answer is a status, headers and a body.
fn serve(answer: impl Fn(&str) -> (&'static str, String, String) + Send + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that has gone is no concern of the test.
            let _ = answer_one(stream, &answer, &seen);
        }
    });
    Server { port, requests }
}

fn answer_one(
    mut stream: TcpStream,
    answer: &impl Fn(&str) -> (&'static str, String, String),
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let lower = head.to_ascii_lowercase();
    let body_len =
        lower.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    reader.take(body_len.unwrap_or(0)).read_to_end(&mut Vec::new())?;
    let (status, headers, body) = answer(head.lines().next().unwrap_or_default());
    seen.lock().unwrap().push(lower);
    let len = body.len();
    write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {len}\r\nconnection: close\r\n{headers}\r\n{body}")
}

impl Server {
    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

#[test]
fn no_secret_of_a_url_or_of_the_environment_is_shown() {
    let directory = Directory::new("server-secrets");
    let (base, _) = base_and_tuned(&directory);
    let out = directory.path("out");
    // A server that repeats in its answer what it was sent.
    let server = serve(|line| ("403 Forbidden", String::new(), format!("no: {line}")));
    let host = format!("127.0.0.1:{}", server.port);
    let secrets = ["hunter2", "signature9", "t0ken-alone", "settings-secret", "alice"];
    let urls = [
        format!("http://alice:hunter2-pw@{host}/x"),
        format!("http://t0ken-alone@{host}/x"),
        format!("http://{host}/x?sig=signature9"),
        "ftp://alice:hunter2-pw@host/x?sig=signature9".to_owned(),
        "s3://alice:hunter2-pw@bucket/x?sig=signature9".to_owned(),
        "az://alice:hunter2-pw@bucket/x?sig=signature9".to_owned(),
    ];
    for url in &urls {
        for arguments in
            [&["load", "step_1", "-o", &out][..], &["list"], &["gc"], &["verify"], &["save", "step_1", &base]]
        {
            let output = command(&[&["store", url], arguments].concat())
                .env("AWS_ACCESS_KEY_ID", "settings-secret-id")
                .env("AWS_SECRET_ACCESS_KEY", "settings-secret")
                .env("AWS_ENDPOINT", format!("http://{host}"))
                .env("AWS_ALLOW_HTTP", "true")
                .env("AWS_REGION", "us-east-1")
                .env("AZURE_STORAGE_ACCOUNT_NAME", "account")
                .env("AZURE_STORAGE_ACCOUNT_KEY", "c2V0dGluZ3Mtc2VjcmV0")
                .env("AZURE_STORAGE_ENDPOINT", format!("http://{host}"))
                .env("AZURE_ALLOW_HTTP", "true")
                .output()
                .unwrap();
            let said = format!("{}{}", text(&output.stderr), text(&output.stdout));
            assert_eq!(output.status.code(), Some(2), "{url}: {said}");
            for secret in secrets {
                assert!(!said.contains(secret), "`{secret}` of {url} {arguments:?}: {said}");
            }
        }
    }
}

#[test]
fn no_secret_of_a_url_that_is_typed_where_a_file_is_wanted_is_repeated() {
    let directory = Directory::new("server-typed");
    let (base, _) = base_and_tuned(&directory);
    let (store, out) = (directory.path("store"), directory.path("out"));
    for url in ["http://alice:hunter2-pw@host/x.mckp", "s3://t0ken-alone@host/x?sig=signature9"] {
        for arguments in [
            &["verify", url][..],
            &["verify", url, url],
            &["verify", url, "--json"],
            &["compress", url],
            &["compress", url, url],
            &["compress", &base, "-o", url],
            &["compress", &base, "--base", url, "-o", &out],
            &["compress", &base, "--threads", url],
            &["decompress", url],
            &["inspect", url],
            &["extract", url, "w"],
            &["compare", url, &base],
            &["diff", &base, url],
            &["estimate", url, url],
            &["repair", url, "-o", &out],
            &["convert", url, "--to", "ecq", "-o", &out],
            &["bench", url],
            &["dictionary", "inspect", url],
            &["store", &store, "save", "step_1", url],
            &["store", "list", url],
            &["store", &store, url],
            &["gone", url],
        ] {
            let output = run(arguments);
            let said = format!("{}{}", text(&output.stderr), text(&output.stdout));
            assert!(matches!(output.status.code(), Some(1 | 2)), "{arguments:?}: {said}");
            for secret in ["alice", "hunter2", "t0ken", "signature9"] {
                assert!(!said.contains(secret), "`{secret}` by {arguments:?}: {said}");
            }
        }
    }
}

#[test]
fn another_host_is_not_told_which_url_led_to_it() {
    let directory = Directory::new("server-redirect");
    let other = serve(|_| ("404 Not Found", String::new(), String::new()));
    let location = format!("location: http://localhost:{}/elsewhere\r\n", other.port);
    let first = serve(move |_| ("302 Found", location.clone(), String::new()));
    let url = format!("http://alice:hunter2-pw@127.0.0.1:{}/x?sig=signature9", first.port);
    let output = run(&["store", &url, "load", "step_1", "-o", &directory.path("out")]);
    assert_ne!(output.status.code(), Some(0));
    assert!(!first.requests().is_empty());
    for request in other.requests() {
        for word in ["referer", "authorization", "hunter2", "signature9"] {
            assert!(!request.contains(word), "{request}");
        }
    }
    assert!(!other.requests().is_empty(), "the redirect was followed: {}", text(&output.stderr));
}

#[test]
fn a_server_that_ignores_conditions_is_refused_before_anything_is_saved() {
    let directory = Directory::new("server-conditions");
    let (base, _) = base_and_tuned(&directory);
    let list = "<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name><KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys>\
                <IsTruncated>false</IsTruncated></ListBucketResult>";
    let server = serve(move |line| match line.split(' ').next() {
        Some("GET") if line.contains("list-type=2") => ("200 OK", String::new(), list.to_owned()),
        Some("PUT") => ("200 OK", "etag: \"e\"\r\n".to_owned(), String::new()),
        Some("DELETE") => ("204 No Content", String::new(), String::new()),
        _ => ("404 Not Found", String::new(), String::new()),
    });
    let output = command(&["store", "s3://bucket/run7", "save", "step_1", &base])
        .env("AWS_ACCESS_KEY_ID", "id")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", server.port))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .output()
        .unwrap();
    check_refused(&output, 2, "ignores the header If-None-Match");
    let written: Vec<String> =
        server.requests().into_iter().filter(|request| request.starts_with("put ")).collect();
    assert_eq!(written.len(), 2);
    for request in &written {
        assert!(request.contains("/run7/conditional") && request.contains("if-none-match: *"), "{request}");
    }
    // S3 deletes by a request of its own.
    let is_deletion = |request: &String| request.starts_with("post ") && request.contains("?delete");
    assert!(server.requests().iter().any(is_deletion), "and nothing is left");
}
