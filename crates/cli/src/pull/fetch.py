"""Gives a URL's bytes on standard output, after one line of JSON that says what comes.

usage: fetch.py URL OFFSET

Only reads and prints: the caller alone writes the file, so a fetch that outlives its caller can
damage nothing. Proxies and trusted certificates are those of the machine's own Python.
"""

import json
import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 30


def head(**fields):
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def main():
    url, offset = sys.argv[1], int(sys.argv[2])
    request = urllib.request.Request(url, headers={"User-Agent": "lockstep"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    token = os.environ.get("HF_TOKEN")
    if token:
        # Not sent on to the host that a redirect names.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as e:
        return head(error=f"it answered {e.code} {e.reason}", status=e.code)
    except urllib.error.URLError as e:
        return head(error=f"it cannot be reached: {e.reason}")
    except (OSError, ValueError) as e:
        return head(error=f"it cannot be reached: {e}")
    length = answer.headers.get("Content-Length")
    head(status=answer.status, length=int(length) if length and length.isdigit() else None)
    while True:
        block = answer.read(1 << 16)
        if not block:
            return None
        sys.stdout.buffer.write(block)


try:
    main()
    sys.stdout.buffer.flush()
except BrokenPipeError:
    os._exit(1)
except Exception as e:
    print(f"{type(e).__name__}: {e}", file=sys.stderr)
    sys.exit(1)
