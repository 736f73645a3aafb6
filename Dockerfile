# A server or a party: docker build --target server -t lessvfl-server . (or party)
FROM python:3.12-slim-bookworm AS build
RUN python -m venv /opt/lessvfl
ENV PATH="/opt/lessvfl/bin:$PATH"
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# PyTorch for CPUs, whose version with +cpu comes before that of PyPI.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    --constraint constraints.txt .

FROM python:3.12-slim-bookworm AS side
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin lessvfl
COPY --from=build /opt/lessvfl /opt/lessvfl
ENV PATH="/opt/lessvfl/bin:$PATH" \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1
WORKDIR /side
USER 10001
ENTRYPOINT ["lessvfl"]

FROM side AS server
EXPOSE 8815
CMD ["server", "--config", "server.yaml"]

FROM side AS party
CMD ["party", "--config", "party.yaml"]
