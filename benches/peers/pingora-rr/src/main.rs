//! The smallest proxy that pingora makes: round robin, one thread. `pingora-rr PORT HOST:PORT...`
use async_trait::async_trait;
use pingora::lb::{LoadBalancer, selection::RoundRobin};
use pingora::prelude::*;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use std::sync::Arc;

struct Lb(Arc<LoadBalancer<RoundRobin>>);

#[async_trait]
impl ProxyHttp for Lb {
    type CTX = ();
    fn new_ctx(&self) {}
    async fn upstream_peer(&self, _s: &mut Session, _c: &mut ()) -> Result<Box<HttpPeer>> {
        let u = self.0.select(b"", 16).ok_or_else(|| Error::new_str("no upstream"))?;
        Ok(Box::new(HttpPeer::new(u, false, String::new())))
    }
}

fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let mut s = Server::new(None).unwrap();
    s.bootstrap();
    let lb = LoadBalancer::<RoundRobin>::try_from_iter(a[1..].iter().map(|x| x.as_str())).unwrap();
    let mut p = http_proxy_service(&s.configuration, Lb(Arc::new(lb)));
    p.add_tcp(&format!("127.0.0.1:{}", a[0]));
    s.add_service(p);
    s.run_forever();
}
