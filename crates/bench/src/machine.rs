//! The sandbox that is measured: written memory, a counter and threads, and a question that proves they are all there.

use anyhow::{Context, Result, ensure};
use branchbox_api::{CreateRequest, ExecRequest, SandboxInfo};
use branchbox_client::{Client, Wait};
use std::time::{Duration, Instant};

/// How long the program may take to fill its memory and listen.
const READY_WITHIN: Duration = Duration::from_secs(60);
const PORT: u16 = 8120;

/// Holds the memory, counts, ticks in threads, and answers `counter digest` to whoever connects.
const PROGRAM: &str = r#"
import hashlib, random, socket, sys, threading, time
memory = bytearray(random.Random(1).randbytes(1 << 20) * int(sys.argv[1]))
ticks = [0] * 4
def tick(number):
    while True:
        time.sleep(0.01)
        ticks[number] += 1
for number in range(4):
    threading.Thread(target=tick, args=(number,), daemon=True).start()
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
counter = 0
while True:
    peer, _ = listener.accept()
    counter += 1
    peer.sendall(f"{counter} {hashlib.sha256(memory).hexdigest()} {min(ticks) > 0}\n".encode())
    peer.close()
"#;

/// Makes the sandbox and waits until its program answers; returns it with the memory's digest.
pub async fn start(client: &Client, memory_mib: u32) -> Result<(SandboxInfo, Answer)> {
    let sandbox = client.create(&CreateRequest::default(), Wait::UntilReady).await.context("create the sandbox")?;
    let content = PROGRAM.as_bytes().to_vec().into();
    client.write_file(&sandbox.id, "/workspace/held.py", 0o644, content).await.context("write the program")?;
    let command = format!("exec python3 /workspace/held.py {memory_mib} {PORT}");
    let request = ExecRequest { command: Some(command), timeout_ms: Some(86_400_000), ..ExecRequest::default() };
    let stream = client.exec_stream(&sandbox.id, &request).await.context("start the program")?;
    drop(stream);
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        match ask(client, &sandbox.id).await {
            Ok(answer) => return Ok((sandbox, answer)),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context("the program does not answer"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// What the program said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Questions so far, this one among them.
    pub counter: u64,
    /// Digest of its memory.
    pub digest: String,
}

/// Asks the program of one sandbox, by a shell alone: the time of this call is that of a first useful result.
pub async fn ask(client: &Client, id: &str) -> Result<Answer> {
    let command = format!("exec 3<>/dev/tcp/127.0.0.1/{PORT} && cat <&3");
    let request = ExecRequest { command: Some(command), ..ExecRequest::default() };
    let result = client.exec(id, &request).await.context("ask the program")?;
    let words: Vec<&str> = result.stdout.split_whitespace().collect();
    let [counter, digest, "True"] = words[..] else {
        anyhow::bail!("the program said {:?} {:?}", result.stdout, result.stderr);
    };
    Ok(Answer { counter: counter.parse().context("read the counter")?, digest: digest.to_owned() })
}

/// Checks a copy: the same memory, and a counter that went on from where the source was.
pub async fn check(client: &Client, id: &str, before: &Answer) -> Result<()> {
    let answer = ask(client, id).await?;
    ensure!(answer.digest == before.digest, "the memory of {id} is not the source's");
    ensure!(
        answer.counter == before.counter + 1,
        "the counter of {id} is {}, after {}",
        answer.counter,
        before.counter
    );
    Ok(())
}
