// A TLS front for the mock provider: tls.mjs CERT KEY PORT BACKEND-PORT
import fs from "node:fs";
import http from "node:http";
import https from "node:https";
const [cert, key, port, backend] = process.argv.slice(2);
https
  .createServer({ cert: fs.readFileSync(cert), key: fs.readFileSync(key) }, (req, res) => {
    const to = http.request({ host: "127.0.0.1", port: backend, method: req.method, path: req.url, headers: req.headers }, (from) => {
      res.writeHead(from.statusCode, from.headers);
      from.pipe(res);
    });
    to.on("error", () => res.destroy());
    req.pipe(to);
  })
  .listen(Number(port), "127.0.0.1");
