/**
 * Has something done once more after every call, never twice at a time. The promise is kept when it was done after the
 * call, so that nothing of it is under way any more.
 * @param {() => Promise<void>} task
 * @returns {() => Promise<void>}
 */
export function oneAtATime(task) {
  let last = Promise.resolve();
  let waiting = false;
  return () => {
    if (waiting) return last;
    waiting = true;
    last = last.then(() => {
      waiting = false;
      return task();
    });
    return last;
  };
}
