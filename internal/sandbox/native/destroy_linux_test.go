package native

import (
	"testing"
	"testing/synctest"
	"time"
)

// Broken if what was destroyed is removed before others are, whom somebody waits for, or if it never is where sandboxes come and go all the time.
func TestBurialsComeAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u burial
		begin := time.Now()
		u.rest()
		if took := time.Since(begin); took != 0 {
			t.Errorf("a burial began after %v, while nothing was destroyed", took)
		}
		first, second := u.ahead(), u.ahead()
		first()
		time.AfterFunc(burialPatience/4, second)
		u.rest()
		if took := time.Since(begin); took != burialPatience/4 {
			t.Errorf("a burial began %v after one of two that end in %v", took, burialPatience/4)
		}
		defer u.ahead()()
		begin = time.Now()
		u.rest()
		if took := time.Since(begin); took != burialPatience {
			t.Errorf("a burial began after %v, while something was destroyed", took)
		}
	})
}
