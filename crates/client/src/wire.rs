//! What a WebSocket goes over, such that the last words of a node are heard.
//!
//! A node that is done says so and closes, while something of ours may still be on its way: keys that were typed, or the
//! answer to a ping, which is written in the middle of a read. That write fails, and must not hide what was said before.
//! So a write that fails is taken for done, and so is each after it; the reading side then tells how it ended.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + Debug {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + Debug> Wire for T {}

/// A connection whose failed writes are told by its reads.
#[derive(Debug)]
pub(crate) struct LastWords {
    inner: Box<dyn Wire>,
    deaf: bool,
}

impl LastWords {
    pub(crate) fn new(inner: Box<dyn Wire>) -> Self {
        Self { inner, deaf: false }
    }

    /// The result of a write, or what it counts as.
    fn or_else<T>(&mut self, result: io::Result<T>, done: T) -> io::Result<T> {
        self.deaf |= result.is_err();
        Ok(result.unwrap_or(done))
    }
}

impl AsyncRead for LastWords {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

impl AsyncWrite for LastWords {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.deaf {
            return Poll::Ready(Ok(bytes.len()));
        }
        let result = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes));
        Poll::Ready(self.or_else(result, bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.deaf {
            return Poll::Ready(Ok(()));
        }
        let result = ready!(Pin::new(&mut self.inner).poll_flush(cx));
        Poll::Ready(self.or_else(result, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.deaf {
            return Poll::Ready(Ok(()));
        }
        let result = ready!(Pin::new(&mut self.inner).poll_shutdown(cx));
        Poll::Ready(self.or_else(result, ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn what_was_said_before_the_end_is_heard_after_a_write_that_fails() {
        let (ours, mut theirs) = tokio::net::UnixStream::pair().expect("pair");
        let mut wire = LastWords::new(Box::new(ours));
        theirs.write_all(b"exit 5").await.expect("written");
        drop(theirs);
        for _ in 0..2 {
            wire.write_all(b"keys").await.expect("taken for done");
            wire.flush().await.expect("taken for done");
        }
        let mut heard = Vec::new();
        wire.read_to_end(&mut heard).await.expect("read");
        assert_eq!(heard, b"exit 5");
    }
}
