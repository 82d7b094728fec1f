# The proxy as a container: docker build -t wholecall . && docker run --rm -p 8080:8080 --read-only --tmpfs /tmp wholecall
# With --build-arg LOCK=requirements-otel.lock it can send OpenTelemetry traces (`telemetry.traces`).
# It needs to write in /tmp only (metrics of several workers), so the root may be read-only.

FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/wholecall
ARG LOCK=requirements.lock
COPY requirements.lock config/requirements-otel.lock ./
# Every file is checked against the lock's hash; the lock holds the build backend too, so the last step downloads nothing.
RUN /opt/wholecall/bin/pip install --require-hashes --only-binary=:all: -r "$LOCK"
COPY pyproject.toml README.md ./
COPY proxy ./proxy
RUN /opt/wholecall/bin/pip install --no-deps --no-build-isolation . \
    && /opt/wholecall/bin/pip uninstall --yes flit-core setuptools pip

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="wholecall" \
      org.opencontainers.image.description="A reverse proxy for LLM APIs that delivers whole, valid tool calls"
COPY --from=build /opt/wholecall /opt/wholecall
COPY config/container.toml /etc/wholecall/wholecall.toml
ENV PATH=/opt/wholecall/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TMPDIR=/tmp \
    HEALTH_URL=http://127.0.0.1:8081/healthz
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(os.environ['HEALTH_URL'], timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["wholecall"]
CMD ["serve", "--config", "/etc/wholecall/wholecall.toml"]
