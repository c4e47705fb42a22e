package egress

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// codings are those of request bodies that can be read.
var codings = []string{"gzip", "deflate", "zstd"}

// codingOf returns how a body is compressed: "" when it is not, and a list as it stands when it is more than once.
func codingOf(h http.Header) string {
	var list []string
	for _, v := range h.Values("Content-Encoding") {
		for c := range strings.SplitSeq(v, ",") {
			if c = strings.ToLower(strings.TrimSpace(c)); c != "" && c != "identity" {
				list = append(list, strings.TrimPrefix(c, "x-"))
			}
		}
	}
	return strings.Join(list, ", ")
}

// decoder returns what a body says. A deflate body is one of zlib, as RFC 9110 has it: of bytes that could be
// either, one server would read what another does not.
func decoder(coding string, body *bytes.Reader) (io.ReadCloser, error) {
	switch coding {
	case "gzip":
		return gzip.NewReader(body)
	case "deflate":
		return zlib.NewReader(body)
	}
	d, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecoderMaxMemory(maxDecoded))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// earlyCoded looks at a compressed body before anything is sent: all of it, because a key in what was sent
// already could not be held back. What cannot be read is refused. The body is sent as it came.
func (p *port) earlyCoded(ctx context.Context, r *http.Request, inj *Injection, f format) *refusal {
	select {
	case p.coded <- struct{}{}:
		context.AfterFunc(ctx, func() { <-p.coded }) // the request is over
	case <-ctx.Done():
		return refuse(http.StatusServiceUnavailable, "credentials", "it was stopped: %v", context.Cause(ctx))
	}
	all, err := io.ReadAll(io.LimitReader(r.Body, maxCoded+1))
	if err != nil {
		return refuse(http.StatusBadRequest, "form", "the body broke off")
	}
	if len(all) > maxCoded {
		return refuse(http.StatusRequestEntityTooLarge, "credentials",
			"the body has more than %d bytes of %s, and must be looked at whole, because of this host's placeholder "+
				"or rules",
			maxCoded, f.coding).withHint("send it uncompressed")
	}
	r.Body = readCloser{bytes.NewReader(all), r.Body}
	if err = lookInside(all, inj, f); err != nil {
		if no := unsent(err); no != nil {
			return no
		}
		return refuse(http.StatusUnsupportedMediaType, "credentials",
			"the body must be looked at, because of this host's placeholder or rules: %v", err).
			withHint("send it uncompressed")
	}
	return nil
}

// lookInside returns why a compressed body may not be sent.
func lookInside(all []byte, inj *Injection, f format) error {
	if len(all) == 0 {
		return nil
	}
	rest := bytes.NewReader(all)
	plain, err := decoder(f.coding, rest)
	if err != nil {
		return fmt.Errorf("it is no %s", f.coding)
	}
	defer plain.Close()
	inside := f
	inside.coding = ""
	n, err := io.Copy(io.Discard, guard(io.NopCloser(io.LimitReader(plain, maxDecoded+1)), inj, inside))
	if unsent(err) != nil {
		return err
	}
	switch {
	case n > maxDecoded || errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded):
		return fmt.Errorf("it holds more than %d bytes", maxDecoded)
	case err != nil || rest.Len() > 0 && f.coding == "deflate":
		return fmt.Errorf("it is no whole %s", f.coding)
	}
	return nil
}
