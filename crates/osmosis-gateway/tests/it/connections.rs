//! What a connection may take, and calls that are repeated.

use std::os::fd::AsRawFd as _;
use std::time::Duration;

use osmosis_gateway::{ConnectionLimits, FaultKind, GatewayOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::{Answer, streamed, user};
use crate::fleet::{Fleet, Mode, Peer, options_for};

fn limited(connections: ConnectionLimits) -> GatewayOptions {
    GatewayOptions {
        connections,
        ..GatewayOptions::default()
    }
}

async fn raw(fleet: &Fleet) -> TcpStream {
    let address = fleet.gateway.url();
    let address = address
        .strip_prefix("http://")
        .unwrap()
        .strip_suffix("/v1")
        .unwrap();
    TcpStream::connect(address).await.unwrap()
}

#[tokio::test]
async fn a_caller_that_does_not_read_holds_little_and_is_cut_off() {
    const EVENTS: usize = 4_000;
    let a = Peer::start("a").await;
    a.set(Mode::Floods(EVENTS));
    let limits = ConnectionLimits {
        stalled: Duration::from_millis(300),
        ..ConnectionLimits::default()
    };
    let fleet = Fleet::start_with(options_for(&[&a]), limited(limits)).await;
    let session = fleet.session(0);
    let mut caller = raw(&fleet).await;
    let body = streamed("hi").to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        session.key(),
        body.len()
    );
    caller.write_all(head.as_bytes()).await.unwrap();
    caller.write_all(body.as_bytes()).await.unwrap();
    // It never reads. What has left the upstream is in the kernel's buffers.
    let call = &fleet.store.wait_for(1).await[0];
    assert!(
        call.error
            .as_deref()
            .unwrap()
            .starts_with("caller_hung_up: ")
    );
    assert!(
        a.flooded() < EVENTS / 4,
        "{} events were taken",
        a.flooded()
    );
    assert!(call.response.len() < 64 << 20, "{}", call.response.len());
    fleet.until(|status| status.in_flight == 0).await;
    drop(caller);
}

#[tokio::test]
async fn a_caller_that_reads_slowly_gets_everything() {
    let a = Peer::start("a").await;
    a.set(Mode::Floods(40));
    let limits = ConnectionLimits {
        stalled: Duration::from_secs(20),
        buffer_bytes: 0,
        ..ConnectionLimits::default()
    };
    let fleet = Fleet::start_with(options_for(&[&a]), limited(limits)).await;
    let session = fleet.session(0);
    let mut response = fleet.post(&session, &streamed("hi")).send().await.unwrap();
    let mut bytes = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        bytes += chunk.len();
        tokio::task::yield_now().await;
    }
    assert!(bytes > 40 * (64 << 10), "{bytes}");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let a = Peer::start("a").await;
    let fleet = Fleet::start(options_for(&[&a])).await;
    let session = fleet.session(0);
    let fits = fleet
        .post(&session, &user("hi"))
        .header("x-padding", "x".repeat(30_000));
    assert_eq!(fits.send().await.unwrap().status(), 200);
    let mut caller = raw(&fleet).await;
    let head = format!(
        "GET /v1/models HTTP/1.1\r\nx-padding: {}\r\n\r\n",
        "x".repeat(1 << 20)
    );
    // It may be answered before all of it is sent.
    let _ = caller.write_all(head.as_bytes()).await;
    let mut answer = [0; 12];
    caller.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");

    let mut caller = raw(&fleet).await;
    let many = "x-one: 1\r\n".repeat(500);
    let head = format!("GET /v1/models HTTP/1.1\r\n{many}\r\n");
    caller.write_all(head.as_bytes()).await.unwrap();
    caller.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
    assert_eq!(fleet.store.calls().len(), 1);
}

#[tokio::test]
async fn a_head_that_drips_is_cut_off_however_steadily_it_comes() {
    let a = Peer::start("a").await;
    let limits = ConnectionLimits {
        head: Duration::from_millis(200),
        ..ConnectionLimits::default()
    };
    let fleet = Fleet::start_with(options_for(&[&a]), limited(limits)).await;
    let mut caller = raw(&fleet).await;
    let dripping = async {
        caller.write_all(b"GET /v1/models HTTP/1.1\r\nx: ").await?;
        loop {
            caller.write_all(b"x").await?;
            let next = Duration::from_millis(5);
            if let Ok(read) = tokio::time::timeout(next, caller.read(&mut [0; 64])).await {
                return read;
            }
        }
    };
    let began = std::time::Instant::now();
    let ended: std::io::Result<usize> = tokio::time::timeout(Duration::from_secs(20), dripping)
        .await
        .unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(began.elapsed() >= Duration::from_millis(150));

    // Whoever waits between two requests has begun nothing.
    let mut caller = raw(&fleet).await;
    for _ in 0..2 {
        let head = "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n";
        caller.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = caller.read(&mut answer).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 401"));
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}

#[tokio::test]
async fn a_refusal_that_leaves_a_body_unread_announces_the_end_of_the_connection() {
    let a = Peer::start("a").await;
    let fleet = Fleet::start(options_for(&[&a])).await;
    let mut caller = raw(&fleet).await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n";
    caller.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![];
    let ended = tokio::time::timeout(Duration::from_secs(20), caller.read_to_end(&mut answer));
    ended.await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.starts_with("http/1.1 401"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn a_body_that_is_declared_too_large_is_refused_before_it_is_sent() {
    let a = Peer::start("a").await;
    let fleet = Fleet::start(options_for(&[&a])).await;
    let session = fleet.session(0);
    let control = fleet.gateway.control_key().expose().to_owned();
    for (path, key, bytes) in [
        ("/v1/chat/completions", session.key(), (64 << 20) + 1),
        ("/v1/policy", &control, (1 << 20) + 1),
        ("/v1/policy/pause", &control, usize::MAX / 2),
    ] {
        let mut caller = raw(&fleet).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {bytes}\r\n\r\n"
        );
        caller.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        let answered = caller.read_exact(&mut answer);
        let answered = tokio::time::timeout(Duration::from_secs(20), answered).await;
        answered.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 413", "{path}");
    }
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_after_a_while() {
    let a = Peer::start("a").await;
    let limits = ConnectionLimits {
        idle: Duration::from_millis(50),
        ..ConnectionLimits::default()
    };
    let fleet = Fleet::start_with(options_for(&[&a]), limited(limits)).await;
    let mut silent = raw(&fleet).await;
    let mut dawdling = raw(&fleet).await;
    dawdling.write_all(b"POST /v1/chat/comp").await.unwrap();
    for caller in [&mut silent, &mut dawdling] {
        let mut rest = Vec::new();
        let closed = caller.read_to_end(&mut rest);
        tokio::time::timeout(Duration::from_secs(20), closed)
            .await
            .unwrap()
            .unwrap();
    }
    // A call that takes longer than that is no idle connection.
    a.set(Mode::Held);
    let session = fleet.session(0);
    let release = async {
        a.wait_for_arrivals(1).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        a.set(Mode::Answers);
    };
    assert_eq!(tokio::join!(fleet.ask(&session), release).0.status, 200);
}

#[tokio::test]
async fn a_call_that_is_repeated_under_its_key_is_answered_again_and_recorded_once() {
    for body in [user("hi"), streamed("hi")] {
        let a = Peer::start("a").await;
        let fleet = Fleet::start(options_for(&[&a])).await;
        let session = fleet.session(0);
        let send = || async {
            let call = fleet.post(&session, &body).header("idempotency-key", "k1");
            Answer::of(call.send().await.unwrap()).await
        };
        let first = send().await;
        let again = send().await;
        assert_eq!((first.status, &first.text), (200, &again.text));
        assert_eq!(first.headers["content-type"], again.headers["content-type"]);
        assert!(!first.headers.contains_key("idempotent-replayed"));
        assert_eq!(again.headers["idempotent-replayed"], "true");
        assert_eq!((a.arrivals(), fleet.store.calls().len()), (1, 1));
        // The key of one rollout means nothing in another.
        let other = fleet.session(1);
        let call = fleet.post(&other, &body).header("idempotency-key", "k1");
        assert_eq!(call.send().await.unwrap().status(), 200);
        assert_eq!(a.arrivals(), 2);
        // Another request under the same key is a mistake, and recorded as one.
        let call = fleet
            .post(&session, &user("other"))
            .header("idempotency-key", "k1");
        assert_eq!(call.send().await.unwrap().status(), 422);
        let error = fleet.store.calls()[2].error.clone().unwrap();
        assert!(error.starts_with("idempotency_key_reused: "), "{error}");
        assert_eq!(session.close().await.summary.model_calls, 2);
    }
}

#[tokio::test]
async fn a_duplicate_waits_for_the_first_and_stands_in_for_it_when_its_caller_hangs_up() {
    let a = Peer::start("a").await;
    let fleet = Fleet::start(options_for(&[&a])).await;
    let session = fleet.session(0);
    let send = || {
        fleet
            .post(&session, &user("hi"))
            .header("idempotency-key", "k1")
            .send()
    };
    a.set(Mode::Held);
    let duplicates = async {
        a.wait_for_arrivals(1).await;
        let second = send();
        let release = async {
            tokio::task::yield_now().await;
            a.set(Mode::Answers);
        };
        tokio::join!(second, release).0.unwrap()
    };
    let (first, second) = tokio::join!(send(), duplicates);
    assert_eq!(first.unwrap().status(), 200);
    assert_eq!(second.headers()["idempotent-replayed"], "true");
    assert_eq!((a.arrivals(), fleet.store.calls().len()), (1, 1));

    // As a client does whose patience ran out: it hangs up and sends the same again.
    a.set(Mode::Held);
    let send = || {
        fleet
            .post(&session, &user("hi"))
            .header("idempotency-key", "k2")
            .send()
    };
    let mut impatient = Box::pin(send());
    tokio::select! {
        _ = &mut impatient => panic!("it was answered"),
        () = a.wait_for_arrivals(2) => drop(impatient),
    }
    let release = async {
        a.wait_for_arrivals(3).await;
        a.set(Mode::Answers);
    };
    let answer = tokio::join!(send(), release).0.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(!answer.headers().contains_key("idempotent-replayed"));
    let calls = fleet.store.wait_for(3).await;
    let errors: Vec<Option<&str>> = calls.iter().map(|call| call.error.as_deref()).collect();
    assert_eq!((errors[0], errors[2]), (None, None));
    assert!(
        errors[1].unwrap().starts_with("caller_hung_up: "),
        "{errors:?}"
    );
}

#[tokio::test]
async fn a_failed_call_is_not_repeated_from_memory_and_a_request_id_is_no_promise() {
    let a = Peer::start("a").await;
    let mut options = options_for(&[&a]);
    options.retries = 0;
    let fleet = Fleet::start(options).await;
    let session = fleet.session(0);
    a.set(Mode::Refuses(500));
    for status in [500, 200] {
        let call = fleet
            .post(&session, &user("hi"))
            .header("idempotency-key", "k1");
        assert_eq!(call.send().await.unwrap().status(), status);
        a.set(Mode::Answers);
    }
    // What OpenAI's clients send with a retry, and what tracing sends with a whole conversation.
    for count in ["0", "1"] {
        let call = fleet
            .post(&session, &user("hi"))
            .header("x-request-id", "conversation-1")
            .header("x-stainless-retry-count", count);
        assert_eq!(call.send().await.unwrap().status(), 200);
    }
    assert_eq!(fleet.store.calls().len(), 4);
    assert_eq!(a.arrivals(), 4);
}

/// Callers would wait in vain, and their agents would fail.
#[tokio::test]
async fn a_gateway_that_can_accept_nothing_is_a_fault_of_the_run() {
    let a = Peer::start("a").await;
    let limits = ConnectionLimits {
        exhausted: Duration::from_millis(200),
        ..ConnectionLimits::default()
    };
    let fleet = Fleet::start_with(options_for(&[&a]), limited(limits)).await;
    let address = fleet.gateway.url().strip_prefix("http://").unwrap();
    // The system completes the connection; the gateway gets its turn at the next await.
    let caller = std::net::TcpStream::connect(address.strip_suffix("/v1").unwrap()).unwrap();
    let all = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(u64::try_from(caller.as_raw_fd()).unwrap() + 1),
        ..all
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let limit = Duration::from_secs(20);
    let fault = tokio::time::timeout(limit, fleet.gateway.run_fault()).await;
    setrlimit(Resource::Nofile, all).unwrap();
    assert_eq!(fault.unwrap().kind, FaultKind::OutOfDescriptors);
}
