package netrule

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/outboard-dev/outboard"
	"github.com/outboard-dev/outboard/internal/outbound"
)

// MaxPath bounds a path: servers refuse longer ones, and a longer one is data on its way out.
const MaxPath = 8 << 10

// Host brings "name", "name:port" or "[address]:port" into canonical form: lower-case, no final dot. port is 0
// when there is none.
func Host(s string) (host string, port int, err error) {
	host = s
	if strings.HasPrefix(s, "[") || strings.Count(s, ":") == 1 {
		rest := ""
		if host, rest, err = splitPort(s); err != nil {
			return "", 0, err
		}
		if rest != "" {
			if port, err = Port(rest); err != nil {
				return "", 0, err
			}
		}
	}
	host = strings.TrimSuffix(lower(host), ".")
	if why := outbound.CheckHost(host); why != "" {
		return "", 0, errors.New(why)
	}
	return host, port, nil
}

func splitPort(s string) (host, port string, err error) {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return s[1 : len(s)-1], "", nil
	}
	host, port, err = net.SplitHostPort(s)
	if err == nil && port == "" {
		err = errors.New("the port is empty")
	}
	return host, port, err
}

// Port reads a port the one way: decimal, no sign, no leading zero.
func Port(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != s {
		return 0, fmt.Errorf("%q is not a port", clip(s))
	}
	return n, nil
}

// lower folds ASCII only: what else Unicode folds is not a host name, and is refused as such.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// Path decodes a path as it stands in a request. odd says what makes different servers read it differently: then
// no rule about paths may let it pass. An error is a path that nobody sends in good faith.
func Path(raw string) (path, odd string, err error) {
	if !strings.HasPrefix(raw, "/") {
		return "", "", errors.New("the path does not begin with a slash")
	}
	if len(raw) > MaxPath {
		return "", "", fmt.Errorf("the path is longer than %d bytes", MaxPath)
	}
	path, err = url.PathUnescape(raw)
	if err != nil {
		return "", "", errors.New("the path has a broken percent escape")
	}
	for i := range len(path) {
		if path[i] < 0x20 || path[i] == 0x7f {
			return "", "", errors.New("the path has a control character")
		}
	}
	for seg := range strings.SplitSeq(strings.ReplaceAll(path, `\`, "/"), "/") {
		name, _, _ := strings.Cut(seg, ";")
		if name == "." || name == ".." {
			return "", "", errors.New("the path has a dot segment")
		}
	}
	folded := strings.ToLower(raw)
	switch {
	case !utf8.ValidString(path):
		odd = "the path is not UTF-8"
	case strings.Contains(path, "//"):
		odd = "the path has an empty segment"
	case strings.Contains(path, `\`):
		odd = "the path has a backslash"
	case strings.Contains(path, ";"):
		odd = "the path has a semicolon"
	case strings.Contains(folded, "%2f"), strings.Contains(folded, "%2e"):
		odd = "the path has an escaped slash or dot"
	case strings.Contains(path, "%"):
		odd = "the path is escaped twice"
	}
	return path, odd, nil
}

// methods is what a rule may name.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// checkHost refuses a rule's host that would not mean what it says.
func checkHost(r outboard.NetRule) error {
	if n, ok := exception(r.Host); ok && !r.Deny && outbound.Metadata(n) {
		return errors.New("host: metadata services are out of reach, whatever a rule says")
	}
	if n, ok := asNetwork(r.Host); ok {
		switch {
		case n.String() != r.Host:
			return fmt.Errorf("host: the network is written %s", n)
		case r.Deny:
			return errors.New("host: a rule cannot deny a network, because a name that leads there is judged before " +
				"it is looked up")
		}
		return nil
	}
	if r.Host == "*" {
		return nil
	}
	host, port, err := Host(strings.TrimPrefix(r.Host, "*."))
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if port != 0 || host != strings.TrimPrefix(r.Host, "*.") || strings.HasPrefix(r.Host, "*.") && isIP(host) {
		return errors.New("host must be a lower-case name, *.name, an IP address, a network or *, without a port")
	}
	return nil
}

// Check refuses a rule that would not mean what it says.
func Check(r outboard.NetRule) error {
	if err := checkHost(r); err != nil {
		return err
	}
	if r.Port < AnyPort || r.Port > 65535 {
		return errors.New("port must be a port, 0 for 80 and 443, or -1 for every port")
	}
	for _, m := range r.Methods {
		if !slices.Contains(methods, m) {
			return fmt.Errorf("methods must be among %s, not %q", strings.Join(methods, ", "), clip(m))
		}
	}
	if r.WebSocket && (r.Deny || len(r.Methods) > 0 && !slices.Contains(r.Methods, "GET")) {
		return errors.New("websocket belongs to a rule that allows GET, with which a WebSocket begins")
	}
	if r.Trusted && r.Deny {
		return errors.New("trusted belongs to a rule that allows something")
	}
	if r.Path == "" {
		return nil
	}
	if i := strings.Index(r.Path, "**"); i >= 0 && i != len(r.Path)-2 {
		return errors.New("path may have ** only at its end")
	}
	if _, odd, err := Path(strings.ReplaceAll(r.Path, "%", "%25")); err != nil || odd != "" {
		return errors.New("path must be a clean absolute path, decoded, in which * is any part of a segment and a " +
			"final ** any rest")
	}
	return nil
}
