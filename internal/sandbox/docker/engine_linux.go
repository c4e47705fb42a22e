package docker

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/outboard-dev/outboard"
)

// engine speaks the engine's HTTP interface. It is safe for concurrent use.
type engine struct {
	socket  string
	version string // of the interface, as a path's part
	http    *http.Client
}

// refusal is an answer that says no.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return r.message }

// refused reports whether err is the engine's, with that status.
func refused(err error, status int) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.status == status
}

// socketPath takes what DOCKER_HOST would say as well.
func socketPath(name string) (string, error) {
	if name == "" {
		return DefaultSocket, nil
	}
	path := strings.TrimPrefix(name, "unix://")
	if !strings.HasPrefix(path, "/") {
		return "", outboard.Errorf(outboard.Invalid, "the Docker engine %q is not the absolute path of a unix socket",
			name).
			WithHint("an engine on another host cannot make sandboxes here: set sandbox.docker.socket to one of " +
				"this host")
	}
	return path, nil
}

func newEngine(socket string) (*engine, error) {
	path, err := socketPath(socket)
	if err != nil {
		return nil, err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &engine{socket: path,
		http: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConns: 8}}}, nil
}

// about is what the engine says of itself.
type about struct {
	Version, APIVersion, MinAPIVersion, Os string
	Driver                                 string // that keeps containers' files
}

// meet asks the engine who it is and settles on a version of the interface.
func (e *engine) meet(ctx context.Context) (about, error) {
	var a about
	if err := e.call(ctx, http.MethodGet, "/version", nil, nil, &a); err != nil {
		return a, err
	}
	switch {
	case a.Os != "linux":
		return a, notHere("the Docker engine at %s runs containers of %s", e.socket, a.Os).
			WithHint("sandboxes need Linux containers")
	case older(a.APIVersion, oldest):
		return a, notHere("the Docker engine at %s is too old: %s speaks version %s of its interface, %s is needed",
			e.socket, a.Version, a.APIVersion, oldest).
			WithHint("install Docker 20.10 or later")
	case older(newest, a.MinAPIVersion):
		return a, notHere("the Docker engine at %s is too new: %s wants version %s of its interface, %s is known",
			e.socket, a.Version, a.MinAPIVersion, newest).
			WithHint("update outboard")
	}
	if e.version = a.APIVersion; older(newest, e.version) {
		e.version = newest
	}
	e.version = "/v" + e.version
	var info struct{ Driver string }
	err := e.call(ctx, http.MethodGet, "/info", nil, nil, &info)
	a.Driver = info.Driver
	return a, err
}

// older compares versions of the interface, such as 1.41.
func older(a, b string) bool {
	parse := func(v string) (major, minor int) {
		x, y, _ := strings.Cut(v, ".")
		major, _ = strconv.Atoi(x)
		minor, _ = strconv.Atoi(y)
		return major, minor
	}
	am, an := parse(a)
	bm, bn := parse(b)
	return am < bm || am == bm && an < bn
}

// call sends one request: in as JSON, or as it is when it is a reader. out, unless nil, takes the answer's JSON.
func (e *engine) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	body, err := e.open(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(body, maxAnswer))
	} else {
		err = json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(out)
	}
	if err != nil {
		return notHere("reading the Docker engine's answer: %w", err)
	}
	return nil
}

// open sends one request and returns the answer's body, which the caller closes. The context bounds the reading
// as well.
func (e *engine) open(ctx context.Context, method, path string, query url.Values, in any) (io.ReadCloser, error) {
	reader, isReader := in.(io.Reader)
	if in != nil && !isReader {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("asking the Docker engine: %w", err)
		}
		reader = bytes.NewReader(data)
	}
	u := url.URL{Scheme: "http", Host: "docker", Path: e.version + path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), reader)
	if err != nil {
		return nil, fmt.Errorf("asking the Docker engine: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
		if isReader {
			req.Header.Set("Content-Type", "application/x-tar")
		}
	}
	res, err := e.http.Do(req)
	if err != nil {
		return nil, e.unreached(ctx, err)
	}
	if res.StatusCode < 300 {
		return res.Body, nil
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	var m struct{ Message string }
	if err != nil || json.Unmarshal(text, &m) != nil || m.Message == "" {
		m.Message = fmt.Sprintf("%s: %q", res.Status, text[:min(len(text), maxSaid)])
	}
	return nil, &refusal{res.StatusCode, strings.ToValidUTF8(m.Message[:min(len(m.Message), maxSaid)], "?")}
}

// unreached says why there was no answer, with the fix.
func (e *engine) unreached(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return notHere("there is no Docker engine: %s does not exist", e.socket).
			WithHint("sudo apt-get install docker.io, or start the installed one, or set sandbox.docker.socket in " +
				"the configuration")
	case errors.Is(err, fs.ErrPermission):
		return notHere("the socket of the Docker engine, %s, is closed to this user", e.socket).
			WithHint("run outboard as root, or add its user to the group that owns the socket")
	case errors.Is(err, syscall.ECONNREFUSED):
		return notHere("no Docker engine listens at %s", e.socket).WithHint("start it: sudo systemctl start docker")
	}
	return notHere("asking the Docker engine at %s: %w", e.socket, err)
}

// words is the end of what a container has written. Its output comes in frames: a stream, three zeros, a length,
// the bytes.
func (e *engine) words(ctx context.Context, container string) string {
	body, err := e.open(ctx, http.MethodGet, "/containers/"+container+"/logs",
		url.Values{"stdout": {"1"}, "stderr": {"1"}, "tail": {"20"}}, nil)
	if err != nil {
		return ""
	}
	defer body.Close()
	var out strings.Builder
	for r := io.LimitReader(body, maxWords); ; {
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return out.String()
		}
		if _, err := io.CopyN(&out, r, int64(binary.BigEndian.Uint32(head[4:]))); err != nil {
			return out.String()
		}
	}
}
