package egress_test

import (
	"fmt"
	"net/http"
	"testing"
)

// Broken if a host that only looks like an allowed one is reached, or one host is judged as two.
func TestInternationalNames(t *testing.T) {
	r := newRig(t, rules(anyPort("paypal.test"), anyPort("xn--bcher-kva.test")))
	r.mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "served ", q.Host) })
	for host, want := range map[string]int{
		"paypal.test":        200, // the control
		"PAYPAL.Test":        200,
		"paypal.test.":       200,
		"xn--bcher-kva.test": 200, // the control of an international name in its one form
		"XN--BCHER-KVA.test": 200,
		"b\u00fccher.test":   400, // the same one in letters
		"p\u0430ypal.test":   400, // a Cyrillic a
		"xn--pypal-4ve.test": 403, // and its xn-- form
		"paypal\u3002test":   400, // an ideographic full stop
		"paypa\u217c.test":   400, // a Roman numeral fifty, which folds to l
		"\uff50aypal.test":   400, // a full-width p
		"paypal.te\u017ft":   400, // a long s, which folds to s
		"pay\u200bpal.test":  400, // a zero-width space
		"pay\u00adpal.test":  400, // a soft hyphen
		"paypal.test\u200d":  400,
		"%70aypal.test":      400,
		"paypal.test%2e":     400,
		"paypal.test.evil":   403,
		"xpaypal.test":       403,
	} {
		before := r.hits.Load()
		codes, body := r.raw(t, fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n", host,
			portOf(r.plain)))
		if len(codes) != 1 || codes[0] != want {
			t.Errorf("%q: %v %s, want %d", host, codes, body, want)
		}
		if n := r.hits.Load() - before; (n != 0) != (want == 200) {
			t.Errorf("%q: %d arrived", host, n)
		}
	}
}
