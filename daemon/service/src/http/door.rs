//! Where connections come in: the Unix socket, whose peers the kernel names, and TCP on loopback, whose requests bring a key.

use crate::config::Key;
use crate::peer::Peer;
use crate::socket::Break;
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{HeaderMap, Request};
use skip_client::{Error, ErrorKind};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A listener, and what it knows of whoever connects.
pub(super) trait Door {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Break + Unpin + Send + 'static;

    /// The next connection.
    async fn accept(&self) -> io::Result<Self::Stream>;

    /// Who is at the other end.
    fn peer(stream: &Self::Stream) -> io::Result<Peer>;

    /// What every request must bring; None: nothing.
    fn guard(&self) -> Option<Arc<Guard>>;
}

impl Door for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }

    fn peer(stream: &UnixStream) -> io::Result<Peer> {
        Peer::of(stream)
    }

    fn guard(&self) -> Option<Arc<Guard>> {
        None
    }
}

/// TCP on loopback.
#[derive(Debug)]
pub struct Tcp {
    listener: TcpListener,
    guard: Arc<Guard>,
}

impl Tcp {
    /// Serves a listener to holders of the key.
    pub fn new(listener: TcpListener, key: Key) -> Self {
        // A listener that is bound has an address; without it the names of this machine are left.
        let address = listener.local_addr().ok().map(|address| address.ip());
        Self { listener, guard: Arc::new(Guard { key, address }) }
    }
}

impl Door for Tcp {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept().await?;
        // Tokens go out as they come.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn peer(_: &TcpStream) -> io::Result<Peer> {
        // Requests without the key do not get far enough to be anybody's.
        Ok(Peer::KeyHolder)
    }

    fn guard(&self) -> Option<Arc<Guard>> {
        Some(self.guard.clone())
    }
}

/// What a request over TCP must bring.
#[derive(Debug)]
pub(super) struct Guard {
    key: Key,
    /// Where it listens.
    address: Option<IpAddr>,
}

impl Guard {
    /// Refuses requests to another host's name (a web page whose name was pointed at this machine), and those without the key.
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), Error> {
        let named = request.uri().authority().is_none_or(|authority| self.is_this_machine(authority.as_str()));
        if !named || !only(request.headers(), HOST).is_some_and(|host| self.is_this_machine(host)) {
            return Err(Error::new(ErrorKind::AccessDenied, "the Host of a request over TCP must be localhost, 127.0.0.1 or [::1]"));
        }
        let refused = |why: &str| Err(Error::new(ErrorKind::Unauthenticated, why));
        match only(request.headers(), AUTHORIZATION).and_then(bearer) {
            None => refused("over TCP a key is needed: Authorization: Bearer KEY"),
            Some(key) if self.key.is(key.as_bytes()) => Ok(()),
            Some(_) => refused("the key is wrong"),
        }
    }

    /// `localhost`, `127.0.0.1`, `[::1]`, or the address that is listened on; with a port or without.
    fn is_this_machine(&self, authority: &str) -> bool {
        let (host, port) = match authority.rsplit_once(':') {
            // The colon is one of an address in brackets.
            Some((_, rest)) if rest.ends_with(']') => (authority, None),
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        };
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
        if !port.is_none_or(is_port) {
            return false;
        }
        let listened = self.address.is_some_and(|address| match address {
            IpAddr::V4(address) => host == address.to_string(),
            IpAddr::V6(address) => host == format!("[{address}]"),
        });
        listened || host.eq_ignore_ascii_case("localhost") || host == "127.0.0.1" || host == "[::1]"
    }
}

/// A header that stands there once.
fn only(headers: &HeaderMap, name: axum::http::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    fn check(uri: &str, headers: &[(&str, &str)]) -> Result<(), ErrorKind> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let guard = Guard { key: Key::parse(KEY).unwrap(), address: Some("127.1.2.3".parse().unwrap()) };
        guard.check(&request.body(()).unwrap()).map_err(|error| error.kind)
    }

    #[test]
    fn the_key_is_needed_and_must_be_right() {
        let key = |authorization: &str| check("/v1/models", &[("host", "localhost:8000"), ("authorization", authorization)]);
        assert_eq!(key(&format!("Bearer {KEY}")), Ok(()));
        assert_eq!(key(&format!("bearer {KEY}")), Ok(()));
        for wrong in
            ["Bearer 0123456789abcdeg".to_owned(), "Bearer ".into(), KEY.into(), format!("Basic {KEY}"), format!("Bearer {KEY}{KEY}")]
        {
            assert_eq!(key(&wrong), Err(ErrorKind::Unauthenticated), "{wrong}");
        }
        assert_eq!(check("/v1/models", &[("host", "localhost")]), Err(ErrorKind::Unauthenticated));
        let right = ("authorization", &*format!("Bearer {KEY}"));
        let twice = [("host", "localhost"), ("authorization", "Bearer other"), right];
        assert_eq!(check("/v1/models", &twice), Err(ErrorKind::Unauthenticated), "which one counts is nobody's guess");
    }

    #[test]
    fn only_names_of_this_machine_are_hosts() {
        let right = ("authorization", &*format!("Bearer {KEY}"));
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000", "[::1]", "127.1.2.3:8000"] {
            assert_eq!(check("/v1/models", &[("host", host), right]), Ok(()), "{host}");
        }
        for host in [
            "example.org",
            "localhost.example.org",
            "localhost.",
            "10.0.0.1",
            "[::2]",
            "",
            "127.0.0.1.example.org",
            "a@localhost",
            "127.0.0.2",
            "127.1",
            "localhost:evil",
            "localhost:",
            "localhost:+80",
            "localhost:65536",
            "localhost:80:80",
            "::1",
            "[::1",
            "[0:0:0:0:0:0:0:1]",
            "[::1]evil",
            "[::1]:x",
        ] {
            assert_eq!(check("/v1/models", &[("host", host), right]), Err(ErrorKind::AccessDenied), "{host}");
        }
        assert_eq!(check("/v1/models", &[right]), Err(ErrorKind::AccessDenied), "none");
        assert_eq!(check("/", &[("host", "localhost"), ("host", "example.org"), right]), Err(ErrorKind::AccessDenied), "two");
        assert_eq!(check("http://example.org/v1/models", &[("host", "localhost"), right]), Err(ErrorKind::AccessDenied), "absolute");
        assert_eq!(check("http://localhost:1/v1/models", &[("host", "localhost"), right]), Ok(()));
    }
}
