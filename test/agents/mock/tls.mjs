// A TLS front for the mock provider: tls.mjs CERT KEY PORT BACKEND-PORT FILES, with the provider's key in $KEY.
// Below /files/ it serves the directory FILES (package indexes, a toolchain) to whoever has the key, in any form of Authorization.
import fs from "node:fs";
import http from "node:http";
import https from "node:https";
import path from "node:path";
const [cert, key, port, backend, files] = process.argv.slice(2);

function authorized(header = "") {
  const [scheme, rest = scheme] = header.split(" ");
  const basic = scheme === "Basic" ? Buffer.from(rest, "base64").toString().split(":")[1] : rest;
  return basic === process.env.KEY;
}

function serve(req, res) {
  const refuse = (status) => res.writeHead(status, status === 401 ? { "www-authenticate": 'Basic realm="files"' } : {}).end();
  if (!authorized(req.headers.authorization)) return refuse(401);
  const name = path.join(files, path.posix.normalize(new URL(req.url, "https://x").pathname).slice("/files".length));
  fs.stat(name, (err, st) => {
    if (err) return refuse(404);
    const file = st.isDirectory() ? path.join(name, "index.html") : name;
    res.writeHead(200, { "content-type": file.endsWith(".html") ? "text/html" : "application/octet-stream" });
    fs.createReadStream(file).on("error", () => res.destroy()).pipe(res);
  });
}

https
  .createServer({ cert: fs.readFileSync(cert), key: fs.readFileSync(key) }, (req, res) => {
    if (req.url.startsWith("/files/")) return serve(req, res);
    const to = http.request({ host: "127.0.0.1", port: backend, method: req.method, path: req.url, headers: req.headers }, (from) => {
      res.writeHead(from.statusCode, from.headers);
      from.pipe(res);
    });
    to.on("error", () => res.destroy());
    req.pipe(to);
  })
  .listen(Number(port), "127.0.0.1");
