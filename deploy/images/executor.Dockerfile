# An executor of a Spark standalone cluster, with the packages that copying needs; Heliograph's own code is sent to it.
# Built from the root of the repository:  docker build -f deploy/images/executor.Dockerfile -t heliograph-executor .
# By digest, if you want the same base each time:  --build-arg BASE=python:3.11-slim-bookworm@sha256:...
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS build
COPY requirements-runtime.lock /
# The worker's versions: Python's minor version and these have to be the same on both sides.
RUN python -m venv /opt/spark-python \
    && /opt/spark-python/bin/pip install --no-cache-dir --require-hashes -r /requirements-runtime.lock

FROM ${BASE}
# Spark's scripts ask ps whether a process lives. A Java of Debian's stays in step with its fixes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home spark
COPY --from=build /opt/spark-python /opt/spark-python
ENV PATH=/opt/spark-python/bin:$PATH \
    SPARK_HOME=/opt/spark-python/lib/python3.11/site-packages/pyspark \
    SPARK_WORKER_DIR=/tmp/spark-work
USER 10001
ENTRYPOINT ["/opt/spark-python/lib/python3.11/site-packages/pyspark/bin/spark-class"]
CMD ["org.apache.spark.deploy.worker.Worker", "spark://spark-master:7077"]
