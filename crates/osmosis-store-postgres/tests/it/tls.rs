//! Encrypted connections to a real server with a certificate.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use osmosis_store::conformance::{claim_one, plan, scored};
use osmosis_store::{Catalogue as _, CompletionReceipt, RunKind, StoreError, StoreErrorKind};
use osmosis_store_postgres::PostgresOptions;
use osmosis_testkit::postgres_server::PostgresServer;

use crate::database::{catalogue_at, options, run};

/// What the certificate is for.
const NAME: &str = "db.test";

/// Authorities, and a certificate of the first one's.
struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    fn new(address: IpAddr) -> Self {
        let made = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for authority in ["right", "wrong"] {
            made.openssl(&format!(
                "req -x509 {KEY} -keyout {authority}.key -out {authority}.crt -subj /CN={authority} -days 2"
            ));
        }
        let names = format!("subjectAltName=DNS:{NAME},IP:{address}\n");
        std::fs::write(made.file("names"), names).unwrap();
        made.openssl(&format!(
            "req {KEY} -keyout server.key -out server.csr -subj /CN={NAME}"
        ));
        made.openssl(
            "x509 -req -in server.csr -CA right.crt -CAkey right.key -CAcreateserial -days 2 -extfile names -out server.crt",
        );
        made
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, arguments: &str) {
        let ran = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "openssl {arguments}: {told}");
    }
}

const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

/// An address of this machine that no other process uses: PostgreSQL can't choose a port itself.
fn free_address() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, 87, high, low);
    TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

fn url(host: &str, address: SocketAddr, more: &str) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!("postgres://postgres@{host}:{port}/postgres?hostaddr={ip}&{more}")
}

fn verified(host: &str, address: SocketAddr, authority: &Path) -> String {
    let authority = authority.display();
    url(
        host,
        address,
        &format!("sslmode=verify-full&sslrootcert={authority}"),
    )
}

async fn refused(url: &str) -> StoreError {
    let catalogue = catalogue_at(url, options());
    catalogue.list(RunKind::Evaluation).await.unwrap_err()
}

#[tokio::test]
async fn a_certificate_is_believed_if_it_is_of_the_authority_and_for_the_name() {
    let address = free_address();
    let certificates = Certificates::new(address.ip());
    let server = PostgresServer::start();
    let (certificate, key) = (
        certificates.file("server.crt"),
        certificates.file("server.key"),
    );
    server.listen_encrypted(address, &certificate, &key);
    let right = certificates.file("right.crt");

    // By name and by address; and what is written arrives.
    let catalogue = catalogue_at(&verified(NAME, address, &right), options());
    let controller = catalogue.create(&run("x")).await.unwrap();
    plan(&*controller, 1, 1).await.unwrap();
    let by_address = verified(&address.ip().to_string(), address, &right);
    let node = catalogue_at(&by_address, options());
    let node = node.join(&run("x")).await.unwrap();
    let claim = claim_one(&*node).await.unwrap();
    let receipt = node.complete(scored(&claim, 1.0).unwrap()).await.unwrap();
    assert_eq!(receipt, CompletionReceipt::Accepted);
    node.close().await.unwrap();
    controller.close().await.unwrap();

    // Another authority, what the system trusts, another name.
    let wrong = certificates.file("wrong.crt");
    for (url, why) in [
        (verified(NAME, address, &wrong), "UnknownIssuer"),
        (url(NAME, address, "sslmode=verify-full"), "UnknownIssuer"),
        (verified("other.test", address, &right), "not valid for"),
    ] {
        let error = refused(&url).await;
        let told = error.to_string();
        assert!(told.contains("invalid peer certificate"), "{url}: {told}");
        assert!(told.contains(why), "{url}: {told}");
        assert!(told.contains("sslrootcert=FILE"), "{url}: {told}");
        assert_ne!(error.kind(), StoreErrorKind::Unreachable, "{told}");
    }
    // `require` believes whoever answers; without encryption this server takes nobody.
    let unverified = catalogue_at(&url(NAME, address, "sslmode=require"), options());
    assert_eq!(unverified.list(RunKind::Evaluation).await.unwrap().len(), 1);
    let plain = refused(&url(NAME, address, "sslmode=disable")).await;
    assert!(plain.to_string().contains("no encryption"), "{plain}");
}

/// A server that ends while encryption is agreed on is away, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_breaks_off_is_tried_again() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let mut tries = 0;
        while tries < 2 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 8];
            stream.read_exact(&mut request).unwrap();
            // It is willing, and gone.
            stream.write_all(b"S").unwrap();
            tries += 1;
        }
    });
    let short = PostgresOptions {
        retry_for: Duration::from_secs(1),
        ..options()
    };
    let url = format!(
        "postgres://postgres@127.0.0.1:{}/postgres?sslmode=require",
        address.port()
    );
    let error = catalogue_at(&url, short)
        .list(RunKind::Evaluation)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    answering.join().unwrap();
}
