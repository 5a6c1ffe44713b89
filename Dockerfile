# The router in a small image. Build: docker build -t prefix-router .
FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
# Dependencies first: their layer lasts until Cargo.lock changes.
COPY Cargo.toml Cargo.lock rustfmt.toml ./
RUN mkdir src benches && echo 'fn main() {}' | tee src/main.rs benches/decision.rs && touch src/lib.rs \
    && cargo build --locked --release && rm -r src benches
COPY src src
COPY benches benches
RUN touch src/main.rs src/lib.rs && cargo build --locked --release

FROM debian:bookworm-slim
COPY --from=build /src/target/release/prefix-router /usr/local/bin/prefix-router
# In a container the ports are published by whoever runs it, so both listen everywhere.
ENV PREFIX_ROUTER_LISTEN=0.0.0.0:8080 PREFIX_ROUTER_ADMIN=0.0.0.0:8081
EXPOSE 8080 8081
USER 65532:65532
HEALTHCHECK --interval=5s --timeout=3s CMD ["prefix-router", "healthcheck"]
ENTRYPOINT ["prefix-router"]
CMD ["serve"]
