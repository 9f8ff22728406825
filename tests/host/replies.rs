//! REPLY: each reply recorded at the real host gets its recorded verdict.

use std::time::Duration;

use highwater_fakehost::{Invocation, Verdict, call};
use serde_json::Value as Json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::bench::{LIMIT, within};
use crate::data;

/// Recorded pauses are divided by this.
const SPEED: u32 = 100;

/// Returns a recorded text with placeholders for long repetitions expanded.
fn whole(record: &Json, field: &str) -> String {
    let text = record[field].as_str().unwrap_or_default();
    if let Some((head, _)) = text.split_once("<and so on, ") {
        let (head, _) = head.split_once("{\"Logs\":").unwrap();
        let lines: Vec<String> = (0..1000).map(|line| format!("\"line {line}\"")).collect();
        return format!("{head}{{\"Logs\":[{}]}}", lines.join(","));
    }
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        whole.push_str(before);
        let repeated = after.split_once('>').and_then(|(inner, behind)| {
            let (letter, count) = inner.split_once(" x ")?;
            Some((letter.repeat(count.parse().ok()?), behind))
        });
        rest = after;
        match repeated {
            Some((letters, behind)) => {
                whole.push_str(&letters);
                rest = behind;
            }
            None => whole.push('<'),
        }
    }
    whole + rest
}

/// Answers one connection as the function's record prescribes.
async fn answer(stream: TcpStream, replies: &[Json]) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let mut words = line.split(['/', ' ']);
    let (is_post, name) = (words.next() == Some("POST"), words.nth(1).unwrap_or_default());
    let record = replies.iter().find(|record| record["name"] == name).unwrap();
    // With the rest of the request unread, closing the connection resets it.
    if name == "xresetbefore" {
        return Ok(());
    }
    let end = if is_post { "0\r\n\r\n" } else { "\r\n" };
    let mut request = String::new();
    while !request.ends_with(end) {
        stream.read_line(&mut request).await?;
    }
    let mut reply = whole(record, "reply");
    let pause = |seconds: f32| tokio::time::sleep(Duration::from_secs_f32(seconds) / SPEED);
    match name {
        "slow12" => pause(12.0).await,
        "slowhead" => {
            let (head, rest) = reply.split_once("\r\n").unwrap();
            stream.write_all(format!("{head}\r\n").as_bytes()).await?;
            pause(30.0).await;
            reply = rest.to_owned();
        }
        "never" => pause(5.5).await,
        _ => {}
    }
    stream.write_all(reply.as_bytes()).await?;
    if record["closes"] != true && !reply.is_empty() {
        // The client closes it.
        stream.read_to_end(&mut Vec::new()).await?;
    }
    Ok(())
}

async fn serve(replies: Vec<Json>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let replies = replies.clone();
            // A client that has its reply disconnects, even while more is being written.
            tokio::spawn(async move { answer(stream, &replies).await });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_reply_gets_its_recorded_verdict() {
    let recorded = data::json("recorded/replies.json");
    let mut replies = recorded.as_array().unwrap().clone();
    assert_eq!(replies.len(), 65);
    let head = "HTTP/1.1 307 Temporary Redirect\r\nLocation: /okobject\r\n";
    let again = format!("{head}Content-Length: 0\r\n\r\n");
    replies.push(serde_json::json!({ "name": "f307", "verdict": "success", "reply": again }));
    let port = serve(replies.clone()).await;
    for record in &replies {
        let name = record["name"].as_str().unwrap();
        let (verdict, _) = within(LIMIT, call(port, &Invocation::new(name, "{}"))).await;
        let (kind, text) = match &verdict {
            Verdict::Success(_) => ("success", ""),
            Verdict::Failure(text) => ("failure", text.as_str()),
            Verdict::Hang(_) => ("hang", ""),
            Verdict::Follows(_) => ("follows", ""),
            Verdict::TimedOut => ("timed out", ""),
        };
        assert_eq!(record["verdict"], kind, "{name}: {verdict:?}");
        let error = whole(record, "error");
        if kind == "failure" && error.contains("success: ") {
            // One of them was recorded without its end.
            let (_class, error) = error.split_once(": ").unwrap();
            assert!(text.starts_with(error), "{name}: {verdict:?}");
        } else if kind == "failure" {
            let begins =
                if error.contains("HttpResponseMessage:") { "Invalid" } else { "HttpRequ" };
            assert!(text.starts_with(begins), "{name}: {verdict:?}");
        }
    }
}
