//! As much of HTTP/1.1 as Prometheus needs: GET of one page, one request per connection. A library would be a hundred
//! times its size for this.

use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const REQUEST_MAX: usize = 8 << 10;
const AT_ONCE: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Serves `page` at `/metrics` until the task is dropped.
pub(crate) async fn serve(listener: TcpListener, page: impl Fn() -> String + Send + Sync + 'static) {
    let page = Arc::new(page);
    let places = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let page = page.clone();
                tokio::spawn(async move {
                    match tokio::time::timeout(TIMEOUT, answer(stream, &*page)).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::debug!(%peer, %error, "a request for metrics failed"),
                        Err(_) => tracing::debug!(%peer, "a request for metrics took too long"),
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection for metrics");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, page: &(dyn Fn() -> String + Send + Sync)) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > REQUEST_MAX || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = respond(&request, page);
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

fn respond(request: &[u8], page: &dyn Fn() -> String) -> (&'static str, String) {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", page()),
        (Some(b"GET"), _) => ("404 Not Found", "Ask for /metrics.\n".to_owned()),
        _ => ("405 Method Not Allowed", "Only GET.\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_of_the_page_is_answered() {
        let page = || "page".to_owned();
        assert_eq!(respond(b"GET /metrics HTTP/1.1\r\n\r\n", &page), ("200 OK", "page".to_owned()));
        assert_eq!(respond(b"GET / HTTP/1.1\r\n\r\n", &page).0, "404 Not Found");
        assert_eq!(respond(b"POST /metrics HTTP/1.1\r\n\r\n", &page).0, "405 Method Not Allowed");
        assert_eq!(respond(b"\xff\xff\r\n\r\n", &page).0, "405 Method Not Allowed");
    }
}
