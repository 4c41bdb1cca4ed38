"""Malformed requests, from a grammar: each is a head (and body) that two readers could understand differently, or that nobody should take.
Kinds follow the HTTP Garden's findings and what was measured on cpp-httplib 0.11.4 (docs/adr/0012-http-guard.md)."""

HOST = b"Host: lorad.test\r\n"
LINE = b"GET /version HTTP/1.1\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST
BODY = b"12345"
# What must never be answered: it stands where the body would be, or behind the refused head.
HIDDEN = b"GET /version HTTP/1.1\r\nHost: lorad.test\r\n\r\n"


def request_lines():
    for line in (b"GET /version", b"GET  /version HTTP/1.1", b"GET /version  HTTP/1.1", b"GET /version HTTP/1.1 ", b" GET /version HTTP/1.1",
                 b"GET\t/version\tHTTP/1.1", b"GET\t/version HTTP/1.1", b"GET /version\tHTTP/1.1", b"/version HTTP/1.1", b"GET HTTP/1.1",
                 b"GET /version HTTP/1.1 HTTP/1.1", b"GET /a b HTTP/1.1", b"G\x00ET /version HTTP/1.1", b"GET /version\x00 HTTP/1.1", b"get /version HTTP/1.1",
                 b"Get /version HTTP/1.1", b"GE(T /version HTTP/1.1", b"GET\x0b/version HTTP/1.1", b"GET /version\x0cHTTP/1.1", b"\x16\x03\x01 /version HTTP/1.1",
                 b"G" * 40 + b" /version HTTP/1.1", b"G3T /version HTTP/1.1", b"GET_ /version HTTP/1.1"):
        yield "request line", line + b"\r\n" + HOST
    for version in (b"HTTP/0.9", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/3.0", b"HTTP/9.9", b"HTTP/0.0", b"HTTP/1.10", b"HTTP/01.1", b"HTTP/1", b"HTTP/1.", b"HTTP/.1",
                    b"HTTP/1,1", b"HTTP 1.1", b"http/1.1", b"Http/1.1", b"HTTPS/1.1", b"HTTP/1.1x", b"xHTTP/1.1", b"HTTP/+1.1", b"HTTP/1.-1", b"HTTP/ 1.1",
                    b"ICAP/1.0", b"RTSP/1.0", b"HTTP/1.1\x00", b"HTTP/1.\xb2"):
        yield "version", b"GET /version " + version + b"\r\n" + HOST
    for target in (b"version", b"*", b"http://other.test/version", b"https://lorad.test:1/version", b"ftp://lorad.test/version", b"//\x00", b"/version#x", b"/%00",
                   b"/version%0d%0aX:%20y", b"/a%0Ab", b"/%7f", b"/%1F", b"/%", b"/%4", b"/%zz", b"/%-1", b"/\x7f", b"/\x80", b"/\xff", b"/a\\b\x01", b"?x",
                   b"lorad.test:80", b"http:/version", b"http://user@lorad.test/version", b"/" + b"a" * 9000, b"/?" + b"x=1&" * 2500):
        yield "target", b"GET " + target + b" HTTP/1.1\r\n" + HOST


def line_ends():
    for name, head in (("bare LF", b"GET /version HTTP/1.1\nHost: lorad.test\n"), ("bare LF", LINE + b"Host: lorad.test\n"), ("bare LF", b"GET /version HTTP/1.1\n" + HOST),
                       ("bare CR", b"GET /version HTTP/1.1\rHost: lorad.test\r\n"), ("bare CR", LINE + b"Host: lorad.test\rX: y\r\n"),
                       ("bare CR", LINE + HOST + b"X: a\rb\r\n"), ("bare CR", LINE + HOST + b"X: a\r\r\n"), ("bare CR", b"GET /version HTTP/1.1\r\r\n" + HOST),
                       ("bare LF", LINE + HOST + b"X: a\nTransfer-Encoding: chunked\r\n"), ("bare LF", LINE + HOST + b"X: a\nContent-Length: 5\r\n"),
                       ("empty line first", b"\r\n" + LINE + HOST), ("empty line first", b"\r\n\r\n" + LINE + HOST), ("empty line first", b"\n" + LINE + HOST)):
        yield name, head


def fields():
    for char in b"\"(),/:;<=>?@[\\]{} \t\x00\x01\x08\x0b\x0c\x1f\x7f\x80\xa0\xff":
        yield "field name", LINE + HOST + b"X" + bytes([char]) + b"Y: 1\r\n" if char != ord(":") else LINE + HOST + b": 1\r\n"
    for char in list(range(0, 9)) + list(range(11, 13)) + list(range(14, 32)) + [127]:
        yield "control in a value", LINE + HOST + b"X: a" + bytes([char]) + b"b\r\n"
    for line in (b"X\r\n", b"X y\r\n", b"X : y\r\n", b"X\t: y\r\n", b" X: y\r\n", b"\tX: y\r\n", b": y\r\n", b"X: y\r\n folded\r\n", b"X: y\r\n\tfolded\r\n", b"X:\r\n y\r\n",
                 b"X: a%0d%0aY: b\r\n", b"X: a%00b\r\n", b"Host : lorad.test\r\n", b"Content-Length\x00: 5\r\n"):
        yield "field", LINE + HOST + line
    yield "folded first", LINE + b" " + HOST
    for name in (b"REMOTE_ADDR", b"Remote_Addr", b"REMOTE_PORT", b"LOCAL_ADDR", b"local_port", b"EXCEPTION_WHAT", b"Content_Length", b"CONTENT_LENGTH",
                 b"Transfer_Encoding", b"content_encoding", b"Content_Type"):
        yield "forged", LINE + HOST + name + b": 10.9.8.7\r\n"


def hosts():
    for lines in (b"", HOST + HOST, HOST + b"Host: other.test\r\n", b"Host:\r\n", b"Host: \r\n", b"Host: a b\r\n", b"Host: a,b\r\n" b"Host: c\r\n", b"Host: user@lorad.test\r\n", b"Host: lorad.test/x\r\n",
                  b"Host: lorad.test:port\r\n", b"Host: lorad.test:123456\r\n", b"Host: lorad.test:-1\r\n", b"Host: [::1\r\n", b"Host: ::1]\r\n", b"Host: [x]\r\n", b"Host: lorad.test?x\r\n",
                  b"Host: lorad.test#x\r\n", b"Host: \xe4.test\r\n", b"Host: a\\b\r\n", b"Host: a%0ab\r\n", b"Host: http://lorad.test\r\n", b"host: a\r\nHOST: a\r\n"):
        yield "host", LINE + lines


def lengths():
    for value in (b"+5", b"-5", b"-0", b"0x5", b"0b1", b"5 5", b"5,5", b"5, 5", b"5, 6", b"5;", b"5.0", b"5e0", b"1e1", b"'5'", b'"5"', b"\xd9\xa5", b"\xb2", b"5_0", b"five",
                  b"", b" ", b"5\t5", b"18446744073709551616", b"18446744073709551621", b"9223372036854775808", b"99999999999999999999999", b"4294967301x", b"0005x", b"5\x0b", b"\x0c5",
                  b"(5)", b"5+5", b"NaN", b"inf", b"5%20"):
        yield "length", POST + b"Content-Length: " + value + b"\r\n"
    for lines in (b"Content-Length: 5\r\nContent-Length: 5\r\n", b"Content-Length: 5\r\nContent-Length: 6\r\n", b"Content-Length: 0\r\nContent-Length: 5\r\n",
                  b"Content-Length: 5\r\ncontent-length: 44\r\n", b"Content-Length : 5\r\n", b"Content-Length\t: 5\r\n", b" Content-Length: 5\r\n", b"Content-Length: 5\r\n 5\r\n",
                  b"Content-Length: 5\r\nX: y\r\nContent-Length: 0\r\n", b"Content-Length:\r\n 5\r\n"):
        yield "lengths", POST + lines


def encodings():
    for value in (b"chunked", b"Chunked", b"CHUNKED", b" chunked", b"\tchunked", b"chunked ", b"xchunked", b"chunkedx", b"chunked, chunked", b"identity", b"gzip", b"gzip, chunked",
                  b"chunked, gzip", b"chunked, identity", b"identity, chunked", b"chunked;q=1", b"'chunked'", b'"chunked"', b", chunked", b"chunked,", b"\x0bchunked", b"chunked\x00",
                  b"chun\x00ked", b"cow", b"", b"trailers"):
        yield "transfer encoding", POST + b"Transfer-Encoding: " + value + b"\r\n"
        yield "both", POST + b"Content-Length: 5\r\nTransfer-Encoding: " + value + b"\r\n"
    for lines in (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
                  b"Transfer-Encoding : chunked\r\n", b"Transfer-Encoding\t: chunked\r\n", b" Transfer-Encoding: chunked\r\n", b"Transfer-Encoding:\r\n chunked\r\n",
                  b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"X: y\rTransfer-Encoding: chunked\r\n", b"TRANSFER-ENCODING: chunked\r\n",
                  b"Transfer-encoding: chunked\r\nContent-length: 0\r\n"):
        yield "transfer encodings", POST + lines
    yield "chunks of 1.0", b"POST /v1/completions HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n"
    for value in (b"gzip", b"x-gzip", b"deflate", b"br", b"zstd", b"compress", b"gzip, br", b"identity, gzip", b"none", b""):
        yield "content encoding", POST + b"Content-Length: 5\r\nContent-Encoding: " + value + b"\r\n"
    for value in (b"100-continu", b"200-ok", b"100-continue, x", b"", b"continue", b"100-continue;x"):
        yield "expect", POST + b"Content-Length: 5\r\nExpect: " + value + b"\r\n"


def sizes():
    yield "too many fields", LINE + HOST + b"".join(b"X-%d: y\r\n" % i for i in range(101))
    yield "too many fields", LINE + HOST + b"A:\r\n" * 150
    yield "too large", LINE + HOST + b"X: " + b"a" * 33000 + b"\r\n"
    yield "too large", LINE + HOST + b"X" * 33000 + b": y\r\n"
    yield "too large", LINE + HOST + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 500) for i in range(80))
    yield "two of one", LINE + HOST + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"
    yield "two of one", LINE + HOST + b"x-api-key: a\r\nX-Api-Key: b\r\n"
    yield "two of one", POST + b"Content-Length: 5\r\nContent-Type: a/b\r\nContent-Type: c/d\r\n"
    yield "stray body", b"GET /version HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n"
    yield "stray body", b"HEAD /version HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n"


def malformed():
    """(kind, bytes): a head with its empty line, 5 bytes where a body was announced, then a whole request that must not be answered."""
    for kinds in (request_lines, line_ends, fields, hosts, lengths, encodings, sizes):
        for kind, head in kinds():
            yield kind, head + b"\r\n" + (b"" if kinds in (request_lines, line_ends, fields, hosts) else BODY) + HIDDEN


def well_formed():
    """(bytes, how many answers of 200): what must be taken, however strict the reader is."""
    end = HOST + b"\r\n"
    yield LINE + end, 1
    yield LINE + end + LINE + end + LINE + end, 3
    yield b"GET /version HTTP/1.0\r\n\r\n", 1
    yield b"HEAD /version HTTP/1.1\r\n" + end, 1
    yield b"GET /version?a=b&c=%20d HTTP/1.1\r\n" + end, 1
    yield b"GET http://lorad.test/version HTTP/1.1\r\n" + end, 1
    yield b"GET http://LORAD.test/version HTTP/1.1\r\n" + end, 1
    yield LINE + b"hOsT:lorad.test\r\n\r\n", 1
    yield LINE + b"Host: \t lorad.test:8080 \t\r\n\r\n", 1
    yield LINE + b"Host: [::1]:80\r\n\r\n", 1
    yield LINE + HOST + b"X-Empty:\r\nX-Text: \xc3\xa4 \"(),;\r\n\r\n", 1
    yield LINE + HOST + b"".join(b"X-%d: y\r\n" % i for i in range(99)) + b"\r\n", 1
    yield LINE + HOST + b"X: " + b"a" * 31000 + b"\r\n\r\n", 1
    yield LINE + HOST + b"Connection: close\r\n\r\n" + LINE + end, 1
    yield LINE + HOST + b"Upgrade: h2c\r\nConnection: Upgrade\r\n\r\n", 1
    yield LINE + HOST + b"Range: bytes=0-1\r\n\r\n", 1
    yield LINE + HOST + b"Content-Length: 0\r\n\r\n" + LINE + end, 2
