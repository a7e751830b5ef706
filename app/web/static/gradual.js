// Draws long lists a part a frame, so that no task is long: the reader scrolls and types meanwhile.
import { useEffect, useRef, useState } from "./ui.js";

/** What one frame may draw, in cells: about 20 ms of a slow core, with style, layout and paint. */
const A_FRAME = 250;

let room = A_FRAME;
let isDue = false;
const growing = new Set();

const nextFrame = (then) => (document.hidden ? setTimeout(then) : requestAnimationFrame(then));

function refill() {
  if (isDue) return;
  isDue = true;
  nextFrame(() => {
    [isDue, room] = [false, A_FRAME];
    for (const grow of [...growing]) {
      if (room <= 0) break;
      growing.delete(grow);
      grow();
    }
    if (growing.size) refill();
  });
}

/** Return how many of these items are drawn after this frame. */
function take(drawn, length, cost) {
  const more = Math.min(length - drawn, Math.max(0, Math.ceil(room / cost)));
  room -= more * cost;
  refill();
  return drawn + more;
}

/** How many of so many items to draw now, each of which costs so much. A list that was whole once is drawn at once. */
export function useGradual(length, cost) {
  const [drawn, setDrawn] = useState(() => take(0, length, cost));
  const isWhole = useRef(false);
  isWhole.current ||= length > 0 && drawn >= length;
  useEffect(() => {
    if (isWhole.current) return undefined;
    const grow = () => setDrawn(take(drawn, length, cost));
    growing.add(grow);
    refill();
    return () => growing.delete(grow);
  }, [drawn, length]);
  return isWhole.current ? length : drawn;
}
