# A worker: heliograph, connect-mirror-maker and connect-distributed, with Spark and a Java beside them.
# Built from the root of the repository:  docker build -f deploy/images/worker.Dockerfile -t heliograph .
# By digest, if you want the same base each time:  --build-arg BASE=python:3.11-slim-bookworm@sha256:...
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
WORKDIR /source
COPY requirements-runtime.lock requirements-java.lock requirements-build.lock ./
# The versions that the tests ran with.
RUN python -m venv /opt/heliograph \
    && /opt/heliograph/bin/pip install --no-cache-dir --require-hashes -r requirements-runtime.lock -r requirements-java.lock \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY connect connect
COPY connectors connectors
COPY rest rest
RUN PYTHONPATH=$(echo /opt/build/lib/python*/site-packages) \
    /opt/heliograph/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${BASE}
COPY --from=build /opt/heliograph /opt/heliograph
RUN useradd --system --uid 10001 --create-home heliograph \
    && install -d -o heliograph /var/cache/heliograph /etc/heliograph
ENV PATH=/opt/heliograph/bin:$PATH XDG_CACHE_HOME=/var/cache PYTHONUNBUFFERED=1
USER 10001
# Spark's classes are recorded once, so that every start is faster.
RUN heliograph warm
# REST, and the control link where executors are on other machines.
EXPOSE 8083 7070
ENTRYPOINT ["heliograph"]
CMD ["mirror", "/etc/heliograph/mm2.properties"]
