//! A DNS server on real UDP and TCP whose every answer the test decides. It is authoritative for whatever it is told, and for nothing else.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::SRV;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// By what it was told; a name that it was not told of does not exist.
    Honest,
    /// With this code.
    Code(ResponseCode),
    /// With bytes that are no answer.
    Garbage,
    /// Not at all.
    Silent,
    /// IPv6 questions with a server failure, the others honestly.
    NoIpv6,
    /// IPv6 questions not at all, the others honestly: what old firewalls make of it.
    DroppedIpv6,
    /// IPv6 questions so much later, all honestly.
    LateIpv6(Duration),
}

/// The longest answer by UDP; longer ones are cut off and come by TCP.
const UDP_LIMIT: usize = 512;

/// The server. Dropping it ends it.
pub(crate) struct Dns {
    pub(crate) addr: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

struct State {
    zone: Mutex<HashMap<(String, RecordType), Vec<RData>>>,
    ttl: Mutex<u32>,
    delay: Mutex<Duration>,
    manner: Mutex<Manner>,
    /// Questions for A and SRV records.
    asked: AtomicUsize,
    by_tcp: AtomicUsize,
}

impl Dns {
    pub(crate) async fn start() -> Self {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
            // The same port may be taken for the other protocol.
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().expect("bound")).await {
                break (udp, tcp);
            }
        };
        let addr = udp.local_addr().expect("bound");
        let state = Arc::new(State {
            zone: Mutex::default(),
            ttl: Mutex::new(0),
            delay: Mutex::default(),
            manner: Mutex::new(Manner::Honest),
            asked: AtomicUsize::new(0),
            by_tcp: AtomicUsize::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, Arc::clone(&state)));
        tasks.spawn(serve_tcp(tcp, Arc::clone(&state)));
        Self { addr, state, _tasks: tasks }
    }

    /// The addresses under `name` are these from now on.
    pub(crate) fn set(&self, name: &str, addresses: &[IpAddr]) {
        let mut zone = self.state.zone.lock().expect("no panic under the lock");
        let of = |wanted: fn(&&IpAddr) -> bool| addresses.iter().filter(wanted).copied().map(RData::from).collect();
        zone.insert((name.to_owned(), RecordType::A), of(|ip| ip.is_ipv4()));
        zone.insert((name.to_owned(), RecordType::AAAA), of(|ip| ip.is_ipv6()));
    }

    /// The servers of `service` are these from now on: priority, weight, port, name.
    pub(crate) fn set_service(&self, service: &str, servers: &[(u16, u16, u16, &str)]) {
        let record = |&(priority, weight, port, target): &(u16, u16, u16, &str)| {
            RData::SRV(SRV::new(priority, weight, port, Name::from_ascii(format!("{target}.")).expect("a name")))
        };
        let records = servers.iter().map(record).collect();
        self.state.zone.lock().expect("no panic under the lock").insert((service.to_owned(), RecordType::SRV), records);
    }

    pub(crate) fn ttl(&self, seconds: u32) {
        *self.state.ttl.lock().expect("no panic under the lock") = seconds;
    }

    /// Answers by UDP take so long from now on.
    pub(crate) fn delay(&self, delay: Duration) {
        *self.state.delay.lock().expect("no panic under the lock") = delay;
    }

    pub(crate) fn manner(&self, manner: Manner) {
        *self.state.manner.lock().expect("no panic under the lock") = manner;
    }

    /// How many questions for A and SRV records there were.
    pub(crate) fn asked(&self) -> usize {
        self.state.asked.load(Ordering::SeqCst)
    }

    /// How many questions came by TCP.
    pub(crate) fn by_tcp(&self) -> usize {
        self.state.by_tcp.load(Ordering::SeqCst)
    }
}

async fn serve_udp(socket: UdpSocket, state: Arc<State>) {
    let socket = Arc::new(socket);
    let mut late = JoinSet::new();
    let mut buffer = [0; 4_096];
    while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
        let delay = state.delay(&buffer[..length]);
        let Some(mut answer) = state.answer(&buffer[..length]) else { continue };
        if answer.len() > UDP_LIMIT {
            let whole = Message::from_vec(&answer).expect("our own");
            answer = whole.truncate().to_vec().expect("it encodes");
        }
        let socket = Arc::clone(&socket);
        late.spawn(async move {
            tokio::time::sleep(delay).await;
            drop(socket.send_to(&answer, client).await);
        });
    }
}

async fn serve_tcp(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            while let Ok(length) = stream.read_u16().await {
                let mut question = vec![0; length.into()];
                if stream.read_exact(&mut question).await.is_err() {
                    return;
                }
                state.by_tcp.fetch_add(1, Ordering::SeqCst);
                let Some(answer) = state.answer(&question) else { continue };
                let framed = [&(answer.len() as u16).to_be_bytes()[..], &answer].concat();
                if stream.write_all(&framed).await.is_err() {
                    return;
                }
            }
        });
    }
}

impl State {
    fn delay(&self, question: &[u8]) -> Duration {
        let kind = Message::from_vec(question).ok().and_then(|question| question.queries.first().map(|query| query.query_type()));
        match *self.manner.lock().expect("no panic under the lock") {
            Manner::LateIpv6(delay) if kind == Some(RecordType::AAAA) => delay,
            _ => *self.delay.lock().expect("no panic under the lock"),
        }
    }

    fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let question = Message::from_vec(question).ok()?;
        let query = question.queries.first()?.clone();
        let (name, kind) = (query.name().clone(), query.query_type());
        if matches!(kind, RecordType::A | RecordType::SRV) {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        let mut answer = Message::response(question.metadata.id, OpCode::Query);
        answer.metadata.authoritative = true;
        answer.add_query(query);
        let manner = *self.manner.lock().expect("no panic under the lock");
        match manner {
            Manner::Silent => return None,
            Manner::DroppedIpv6 if kind == RecordType::AAAA => return None,
            Manner::Garbage => return Some([&question.metadata.id.to_be_bytes()[..], &[0xff; 40]].concat()),
            Manner::Code(code) => answer.metadata.response_code = code,
            Manner::NoIpv6 if kind == RecordType::AAAA => answer.metadata.response_code = ResponseCode::ServFail,
            Manner::Honest | Manner::NoIpv6 | Manner::DroppedIpv6 | Manner::LateIpv6(_) => {
                let zone = self.zone.lock().expect("no panic under the lock");
                let plain = name.to_ascii().trim_end_matches('.').to_ascii_lowercase();
                let ttl = *self.ttl.lock().expect("no panic under the lock");
                match zone.get(&(plain.clone(), kind)) {
                    Some(records) => {
                        answer.add_answers(records.iter().map(|data| Record::from_rdata(name.clone(), ttl, data.clone())));
                    }
                    None if zone.keys().any(|(known, _)| *known == plain) => {}
                    None => answer.metadata.response_code = ResponseCode::NXDomain,
                }
            }
        }
        Some(answer.to_vec().expect("it encodes"))
    }
}
