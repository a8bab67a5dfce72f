# A worker: heliograph, connect-mirror-maker and connect-distributed, with Spark and a Java beside them.
# Built from the root of the repository:  docker build -f deploy/images/worker.Dockerfile -t heliograph .
FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE requirements.lock requirements-java.lock ./
COPY connect connect
COPY connectors connectors
COPY rest rest
# The versions that the tests ran with; hashes cannot be asked for beside a folder of sources.
RUN sed -e '/--hash/d' -e 's/ \\$//' requirements.lock requirements-java.lock > /constraints.txt \
    && python -m venv /opt/heliograph \
    && /opt/heliograph/bin/pip install --no-cache-dir --constraint /constraints.txt '.[java,connect]'

FROM python:3.11-slim-bookworm
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
