//! Nodes of a run whose model is at a server: addresses come with the run, keys do not.

use camino::Utf8PathBuf;
use osmosis_testkit::model_server::{Behaviour, ModelServer};
use osmosis_testkit::postgres_server::PostgresServer;
use osmosis_testkit::python_environment;

use super::{Cluster, files_with, report, secrets_of};
use crate::workspace::{PLAIN, Workspace, product_rows};

const KEY: &str = "sk-not-to-be-seen";
const SECRET: &str = "a-secret-not-to-be-seen";

/// The plain agent, if it has its secret.
fn agent() -> String {
    let head = "    async def run(self, ctx):\n";
    let length = SECRET.len();
    let check = format!("        import os; assert len(os.environ['SEARCH_KEY']) == {length}\n");
    PLAIN.replacen(head, &format!("{head}{check}"), 1)
}

#[test]
fn a_node_asks_the_servers_of_the_config_with_keys_of_its_own() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let model = runtime
        .block_on(ModelServer::start(Behaviour::Answers))
        .unwrap();
    let server = PostgresServer::start();
    let mut workspace = Workspace::new(&agent(), "", &product_rows(4));
    workspace.model(
        "some-model",
        "[evaluation]\nagent_workflow_timeout_s = 60\n[secrets]\nrequired = [\"SEARCH_KEY\"]\n",
    );
    workspace.variable("OSMOSIS_LEASE_SECONDS", "3");
    let cluster = Cluster {
        gate: workspace.root.join("gate"),
        server,
        workspace,
    };
    let python = python_environment::python();
    let submit = [
        "eval",
        "submit",
        "configs/eval/c.toml",
        "--name",
        "t",
        "--json",
    ];
    let more = ["--nodes-only", "--no-probe", "--python", python.as_str()];
    let mut command = cluster.workspace.command(&[&submit[..], &more].concat());
    command
        .env("OSMOSIS_STORE", cluster.server.url())
        .env("OPENAI_BASE_URL", model.url())
        .env("OPENAI_API_KEY", KEY)
        .env("SEARCH_KEY", SECRET);
    let controller = cluster.begin("controller", &mut command);
    let invitation = controller.invitation();

    // Secrets are this machine's.
    let refused = cluster.node("refused", &invitation, &[]).ends().expect(1);
    assert_eq!(refused.error()["code"], "secret_missing");
    let secrets = cluster.workspace.root.join("secrets");
    std::fs::write(&secrets, format!("SEARCH_KEY={SECRET}\n")).unwrap();
    let named = [
        "--store",
        &invitation.store,
        "--join",
        &invitation.join,
        "--json",
    ];
    let more = ["--secrets-file", secrets.as_str()];
    let mut command = cluster.node_command(&[&named[..], &more].concat());
    // The address of the server is not: it comes with the run.
    let node = cluster.begin("node", command.env("OPENAI_API_KEY", KEY));
    controller.ends().expect(0);
    assert_eq!(report(node.ends()).1, 4);
    assert_eq!(cluster.workspace.outcomes(), ["scored"; 4]);
    for request in model.requests() {
        assert_eq!(request.headers["authorization"], format!("Bearer {KEY}"));
    }

    // Nothing of it is in the database, its log included.
    let [_, password, key] = secrets_of(&invitation.join);
    let data = Utf8PathBuf::from_path_buf(cluster.server.folder().join("data")).unwrap();
    cluster.server.crash();
    for secret in [KEY, SECRET, &password, &key] {
        assert_eq!(files_with(&data, secret), Vec::<Utf8PathBuf>::new());
    }
}
