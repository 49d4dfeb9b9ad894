//! Bodies: the one that a page answers with, and the reading of one that comes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use http_body::{Frame, SizeHint};

/// The body of an answer: all of it is there.
///
/// # Examples
///
/// ```
/// use timerqueue_web::Body;
///
/// assert_eq!(Body::default().into_bytes().len(), 0);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Body {
    bytes: Bytes,
}

impl Body {
    pub(crate) fn new(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into() }
    }

    /// What is left of the body.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = std::mem::take(&mut self.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// Reads a body of at most this number of bytes. `None`: it is longer, or broken.
pub(crate) async fn read<B: http_body::Body>(body: B, most: usize) -> Option<Vec<u8>> {
    let mut body = pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if bytes.len() + data.remaining() > most {
            return None;
        }
        bytes.put(data);
    }
    Some(bytes)
}
