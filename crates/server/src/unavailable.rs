//! What the wire contract has and this node does not: one table, each answered 501 with a word on what to do instead.

use crate::answer::Failure;
use branchbox_model::Code;

/// Verbs on a sandbox.
const SANDBOX_VERBS: &[(&str, &str)] = &[
    ("switch-image", "create another sandbox"),
    ("resize", "create another sandbox with these sizes"),
    ("try", "fork, run the step in the copy, and delete one of the two"),
    ("explore", "fork with a count"),
    ("commit", "delete the source and go on with the copy"),
    ("abort", "delete the copy"),
    ("race", "fork with a count and run a step in each copy"),
    ("rollback", "create another from a snapshot"),
];

/// Parts of a sandbox, as the first component behind its id.
const SANDBOX_PARTS: &[(&str, &str)] = &[
    ("sessions", "use the admin key"),
    ("mcp", "use the API"),
    ("mounts", "write files instead"),
    ("tailscale", "sandboxes have no way out"),
    ("desktop", "use :exec"),
    ("browser", "use :exec"),
    ("tree", "see GET /v1/sandboxes"),
    ("diff", "compare the files with :exec"),
    ("effects", "sandboxes have no way out, so nothing is held"),
    ("files:link", "read the file with GET files/content"),
    ("files:revoke-links", "there are no links to revoke"),
];

const PRODUCT_HINT: &str = "see the README for what this node has";
const MCP_HINT: &str = "use the API";

/// First components behind `/v1`.
const PRODUCTS: &[&str] = &[
    "agents",
    "apps",
    "billing",
    "builds",
    "ci",
    "containers",
    "domains",
    "effects",
    "egress-secrets",
    "explorations",
    "feedback",
    "functions",
    "ips",
    "jobs",
    "mcp",
    "networks",
    "notices",
    "otel-exports",
    "plans",
    "ports",
    "referrals",
    "reservations",
    "secrets",
    "sso",
    "support",
    "switching",
    "volume-backups",
    "volumes",
    "webhook-deliveries",
    "webhooks",
];

/// Every method and path that is answered so, with the hint; some have routes beside them that this node has.
pub(crate) fn table() -> impl Iterator<Item = (&'static str, String, &'static str)> {
    let verbs = SANDBOX_VERBS.iter().map(|(verb, hint)| ("post", format!("/v1/sandboxes/{{sandbox}}:{verb}"), *hint));
    let parts = SANDBOX_PARTS.iter().map(|(part, hint)| {
        (if part.contains(':') { "post" } else { "get" }, format!("/v1/sandboxes/{{sandbox}}/{part}"), *hint)
    });
    let products = PRODUCTS.iter().map(|product| ("post", format!("/v1/{product}"), PRODUCT_HINT));
    let mcp = [("post", "/mcp".to_owned(), MCP_HINT)];
    verbs.chain(parts).chain(products).chain(mcp)
}

fn unavailable(what: &str, hint: &str) -> Failure {
    Failure::new(Code::Unavailable, format!("this node has no `{what}`"), hint)
}

/// The answer to a verb on a sandbox that this node does not have.
pub(crate) fn sandbox_verb(verb: &str) -> Option<Failure> {
    SANDBOX_VERBS.iter().find(|(known, _)| *known == verb).map(|(_, hint)| unavailable(verb, hint))
}

/// The answer to a path that this node does not have, if the contract has it.
pub(crate) fn path(components: &[&str]) -> Option<Failure> {
    match components {
        ["v1", "sandboxes", _, part, ..] => {
            SANDBOX_PARTS.iter().find(|(known, _)| known == part).map(|(_, hint)| unavailable(part, hint))
        }
        ["v1", "images", rest] if rest.starts_with("registries") => {
            Some(unavailable("images/registries", "registries are asked without credentials"))
        }
        ["v1", product, ..] => {
            let product = product.split_once(':').map_or(*product, |(product, _)| product);
            PRODUCTS.contains(&product).then(|| unavailable(product, PRODUCT_HINT))
        }
        ["mcp", ..] => Some(unavailable("mcp", MCP_HINT)),
        _ => None,
    }
}
